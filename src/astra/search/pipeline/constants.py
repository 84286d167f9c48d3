"""How much a search for interleaved pipelines looks at.

A skeleton is a config with a number of stages of each type.
"""

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
CHUNKED_KEPT = 240  # pipelines that are kept of these
MOVED_CHUNKS = 16  # of them, whose chunks are made larger and smaller
CHUNK_ROUNDS = 6  # of such changes
