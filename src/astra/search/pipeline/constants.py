"""How much a search for pipelines looks at: every count and ratio of it."""

# Paces: most seconds that a stage may take with one micro-batch.
PACE_RATIO = 1.02  # of two neighbouring paces
PACES = 24  # tried at a time
WIDE_RATIO = 1.15  # of two neighbouring paces above these, for stages of few layers
WIDE_PACES = 8  # such paces
PACE_BLOCKS = 8  # times that paces are raised, until the stages hold the model
FILL_RATIOS = (1.0, 1.03, 1.08)  # paces at which layers are filled in, over the least one

# A first look at a setting.
OPTIONS_PER_FINENESS = 3  # of a type, with as many stages, that hold most
WORTHWHILE = 0.7  # of what the best option of its type holds
ROOMIEST = 2  # options of a type that are kept whatever they hold in time

# Skeletons of a setting.
MAX_STAGES = 64
NEAR_BEST = 1.1  # times the best step known, within which a skeleton is worth changing
ROUNDS = 6  # of changes to one segment
CHANGED = 8  # skeletons, each round
OTHER_COUNTS = 4  # numbers of stages of a segment whose option is changed
SIMULATED = 24  # pipelines of one depth, those of the least bounds
KEPT_PER_SETTING = 16  # pipelines

# One recompute setting for all stages.
RECOMPUTED_FIRST = 3  # global settings, the best so far, in which all that are worth it are tried
MODULE_SETS = 8  # sets of modules that are worth it, from few bytes saved to many
SAME_RECOMPUTE = 0.02  # less time by no more than that is not worth a set of its own
RECOMPUTED_SETTINGS = 8  # global settings, those included, in which the best of these are tried
RECOMPUTES_NEXT = 3  # the best of these

# Whole plans.
PRICED = 200  # plans that the evaluator prices at a time
PRICED_TABLES = 8  # of them at most, while none is allowed
MOVED = 8  # plans between whose stages layers are moved, at least
MOVED_STAGES = 160  # more such plans, while all have so many stages together
MOVED_PER_SETTING = 10  # such plans of one global setting
NEAR_MOVED = 1.02  # times the best step known, within which layers are moved
PATIENCE = 8  # moves in a row that need not help

# Small pools.
LISTED = 100_000  # pipelines that are all looked at, where there are no more
LISTED_SKELETONS = 20_000  # likewise

# Interleaved pipelines. A skeleton is a config with a number of stages of each type.
STAGE_COUNTS = 4  # of a type, that are all tried; of more the largest half as many
CAPPED_COUNTS = 8  # numbers of stages of a type that are tried where GPUs are capped
FIRST_VPPS = 3  # numbers of chunks in the first look, the least ones
FIRST_SKELETONS = 6000  # that are estimated
MAX_SKELETONS = 384  # that are laid out
SKELETONS = 48  # of them, together
NEAR_ESTIMATE = 1.05  # times the best step known, within which an estimate may win
SHAPES_PER_SKELETON = 32  # numbers of chunks with a recompute setting, the most promising
PACE_HALVINGS = 20  # of the pace at which stages hold the model
TYPE_ORDERS = 24  # of the types of a pipeline
SIZED = 3000  # shapes of some skeletons, each in one order, that get chunk sizes
FEW_SIZED = 500  # pipelines whose neighbours are all tried at once, whether they fit or not
CHUNKED_SIMULATED = 400  # of those that are bounded together, simulated
CHUNKED_PRICED = 240  # pipelines that are kept of these, for the evaluator
MOVED_CHUNKS = 16  # of them, whose chunks are made larger and smaller
CHUNK_ROUNDS = 6  # of such changes
