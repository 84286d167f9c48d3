"""Facts that an answer's reader has to know: a code and its numbers, made into text by `report`.

Code asks for the code, never for words in a sentence. JSON has both: the sentences, and beside
them the codes with their facts.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec


class NoteCode(StrEnum):
    """What a note says; `report.words` has a sentence for each."""

    # of a priced plan
    UNKNOWN_RELEASE = "unknown_release"  # nobody measured that release of the stack
    DOES_NOT_FIT = "does_not_fit"
    RAM_TOO_SMALL = "ram_too_small"  # a node does not hold what is offloaded
    RAM_UNKNOWN = "ram_unknown"  # nobody knows whether it does
    TENSOR_OVER_NETWORK = "tensor_over_network"  # groups larger than a link domain
    NOT_LAUNCHABLE = "not_launchable"  # no public runtime launches it
    BEYOND_POSITIONS = "beyond_positions"  # sequences longer than the model was made for
    NO_MONEY = "no_money"  # hours and dollars need tokens and a price
    NO_TOKENS = "no_tokens"  # prices are known, tokens are not
    NO_PRICE = "no_price"
    UNFIT_MONEY = "unfit_money"  # dollars of a plan that does not fit
    INSTANCE_RAM_TOO_SMALL = "instance_ram_too_small"
    PAPER_FORMULA = "paper_formula"  # the step is the paper's formula's
    # of where its numbers come from
    KERNEL_SOURCE = "kernel_source"
    OUTSIDE_MEASURED = "outside_measured"
    STACK_SOURCE = "stack_source"
    STACK_FACTORS = "stack_factors"
    GPU_ASSUMED = "gpu_assumed"
    CONTRADICTS_HARDWARE = "contradicts_hardware"  # slower with no less of anything
    # of how a question was read
    OUTSIDE_SPACE = "outside_space"  # settings of a given plan that no search tries
    GPU_READ_AS = "gpu_read_as"
    EQUAL_GPUS = "equal_gpus"  # two names of one GPU
    PARTIAL_NODES = "partial_nodes"  # GPUs that do not fill nodes
    PROVEN_ANYWAY = "proven_anyway"  # --exact on one GPU type
    MTP_LEFT_OUT = "mtp_left_out"  # layers that a runtime does not train
    COUNT_ASSUMED = "count_assumed"  # so many of a type without a count
    # of a search
    STOPPED_EARLY = "stopped_early"  # by the user or at a time limit: the best so far is told
    NONE_FITS_SURELY = "none_fits_surely"  # as surely as the risk that was asked for
    NEEDS_LIBRARY = "needs_library"  # the best plan's dispatcher
    DTYPES_SAVE = "dtypes_save"  # that change the training's numbers, and are off
    BELOW_THROUGHPUT = "below_throughput"  # no plan reaches what was asked for
    RAM_UNKNOWN_OF_PLANS = "ram_unknown_of_plans"
    VENDORS_APART = "vendors_apart"
    NO_MIXED_PIPELINES = "no_mixed_pipelines"  # a runtime has none
    NO_CONTEXT_OVER_TYPES = "no_context_over_types"
    NOT_NARROWED_OVER_TYPES = "not_narrowed_over_types"  # a setting that they do not know
    TYPE_WITHOUT_UNITS = "type_without_units"
    TYPE_AGAINST_RULES = "type_against_rules"
    TYPE_TOO_SMALL = "type_too_small"
    LIST_PRICE = "list_price"  # described nodes at the price of others like them
    SMALL_NODES = "small_nodes"  # too little RAM for a job
    CLOUDS_LEFT_OUT = "clouds_left_out"  # old lists, and none at all
    OLD_PRICES = "old_prices"
    POWER_PRICE = "power_price"  # the default, for GPUs that one owns
    MIXTURES_SEARCHED = "mixtures_searched"
    MIXTURES_APART = "mixtures_apart"
    MIXTURES_OF_LAUNCHABLE = "mixtures_of_launchable"
    MIXTURES_TOO_MANY_TYPES = "mixtures_too_many_types"
    MIXTURES_REFUSED = "mixtures_refused"
    MIXTURES_SKIPPED = "mixtures_skipped"
    # why nothing fits
    NO_PLAN_YET = "no_plan_yet"  # the search was stopped before one was found
    MEMORY_BINDS = "memory_binds"
    RULES_BIND = "rules_bind"
    NONE_AS_ASKED = "none_as_asked"
    SETTINGS_BIND = "settings_bind"
    CLOSEST_TYPE = "closest_type"  # a heading of the next note, as are the next two
    CLOSEST_INSTANCE = "closest_instance"
    OF_VENDOR = "of_vendor"
    # and what would help
    TRY_OTHER_SETTING = "try_other_setting"
    TRY_FEWER_SETTINGS_OR_RULES = "try_fewer_settings_or_rules"
    TRY_WITHOUT_SETTING = "try_without_setting"
    TRY_WITHOUT_SETTINGS = "try_without_settings"
    TRY_OTHER_BATCH_OR_GPUS = "try_other_batch_or_gpus"
    TRY_FEWER_SETTINGS = "try_fewer_settings"
    TRY_GPUS = "try_gpus"
    TRY_SEQ_LEN = "try_seq_len"
    TRY_DTYPES = "try_dtypes"  # that change the training's numbers
    TRY_LARGER_GPU = "try_larger_gpu"
    TRY_MORE_GPUS = "try_more_gpus"
    TRY_OTHER_CLOUDS = "try_other_clouds"
    TRY_OTHER_TYPE = "try_other_type"
    # what an explanation changes
    AS_IS = "as_is"
    MORE_NETWORK = "more_network"
    MORE_LINK = "more_link"
    MORE_MEMORY_BANDWIDTH = "more_memory_bandwidth"
    MORE_COMPUTE = "more_compute"
    MORE_MEMORY = "more_memory"
    OTHER_MICRO_BATCH = "other_micro_batch"
    OTHER_COUNT = "other_count"
    WITHOUT_TYPE = "without_type"
    THESE_SETTINGS = "these_settings"
    TYPE_ALONE = "type_alone"
    # why there is no plan with some settings
    SETTINGS_FORBIDDEN = "settings_forbidden"  # by rules
    SETTINGS_IMPOSSIBLE = "settings_impossible"  # there is none to begin with
    # and says besides
    RULES_GONE = "rules_gone"
    SEARCHED_AS_NARROWLY = "searched_as_narrowly"
    MIXED_PRICES = "mixed_prices"


HEADINGS = frozenset({NoteCode.CLOSEST_TYPE, NoteCode.CLOSEST_INSTANCE, NoteCode.OF_VENDOR})


class Note(msgspec.Struct, frozen=True):
    """A fact with its code and its numbers, in SI units."""

    code: NoteCode
    facts: dict[str, Any] = {}


def note(code: NoteCode, **facts: Any) -> Note:
    return Note(code, facts)


def has(notes: Iterable[Note], *codes: NoteCode) -> bool:
    """Whether one of these is among them."""
    return any(each.code in codes for each in notes)
