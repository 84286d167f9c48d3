"""The declared space: every dimension of a plan, its values, and which are not multiplied out."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from astra.errors import InputError, did_you_mean, shorten
from astra.hardware.cluster import Gpu, Pool
from astra.hardware.topology import widest_tensor_group
from astra.strategy.plans import FLAGS, OFFLOAD_MODULES, WORDS, Task
from astra.strategy.recompute import Recompute

How = Literal["searched", "follows", "asked"]
# Published runs offload whole layers over wider links than this; how much of it all GPUs of a node
# get at once is not known, so that a search on narrower ones would promise too much.
PCIE_5_BYTES_PER_S = 63e9


@dataclass(frozen=True, slots=True)
class Workload:
    """What a space is the space of: a task, its batch and its sequence length."""

    task: Task
    global_batch: int
    seq_len: int
    mtp_layers: int = 0
    precision: str = "bf16"
    use_all: bool = False  # no fewer GPUs than there are
    gpu_counts: tuple[int, ...] | None = None  # that a plan may take; None: as they are rented
    part_of_batch: bool = False  # others do the rest: any replicas, as few micro-batches as can be
    gpu_types: tuple[Gpu, ...] = ()  # that its one type stands for; none: it is itself


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of the space, and how its values come about."""

    name: str
    how: How  # searched: multiplied out; follows: derived from other settings; asked: only by --set
    why: str  # for people: what the values are, or why only one is tried
    values: Callable[[Workload], tuple[Any, ...]] | None = None  # None: depends on the row


def divisors(number: int) -> tuple[int, ...]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def _pool(workload: Workload) -> Pool:
    return workload.task.cluster.pools[0]


def _tp(workload: Workload) -> tuple[int, ...]:
    return divisors(widest_tensor_group(_pool(workload).gpu))


def _cp(workload: Workload) -> tuple[int, ...]:
    longest = max(workload.seq_len // 1024, 1)
    return tuple(2**n for n in range(10) if 2**n <= longest)


def _micro_batches(workload: Workload) -> tuple[int, ...]:
    return tuple(n for n in divisors(workload.global_batch) if n <= 16)


def _sharding(workload: Workload) -> tuple[str, ...]:
    return {
        "fsdp": ("gradients", "parameters"),
        "deepspeed": ("optimizer", "gradients", "parameters"),
    }.get(workload.task.runtime, ("optimizer", "parameters"))


def _ep(workload: Workload) -> tuple[int, ...]:
    moe = workload.task.model.moe
    return divisors(moe.experts) if moe else (1,)


def _cp_comm_types(workload: Workload) -> tuple[str, ...]:
    return {"deepspeed": ("a2a",), "fsdp": ("p2p", "allgather")}.get(
        workload.task.runtime, ("p2p", "a2a", "allgather")
    )


def _overlap_ep(workload: Workload) -> tuple[bool, ...]:
    searched = workload.task.model.moe and workload.task.runtime in ("megatron", "flagscale", "any")
    return (False, True) if searched else (False,)


def _offloaded_optimizer(workload: Workload) -> tuple[float, ...]:
    parts = 1 if workload.task.runtime == "fsdp" else 8
    return tuple(part / parts for part in range(parts + 1))


def _offload_layers(workload: Workload) -> tuple[int, ...]:
    links = [pool.gpu.node.pcie_bytes_per_s for pool in workload.task.cluster.pools]
    wide = workload.task.runtime == "megatron" and min(links) > PCIE_5_BYTES_PER_S
    return tuple(range(workload.task.model.layers)) if wide else (0,)


DIMENSIONS = (
    Dimension(
        "tp", "searched", "the divisors of the link domain, or of eight where it is smaller", _tp
    ),
    Dimension("cp", "searched", "powers of two that leave at least 1,024 tokens per GPU", _cp),
    Dimension("pp", "searched", "every number of stages up to the layers of the model"),
    Dimension(
        "dp",
        "searched",
        "every number of replicas that divides the batch and makes a GPU count that can be rented: "
        "1, 2, 4 inside a node, then whole nodes",
    ),
    Dimension("micro_batch", "searched", "divisors of the batch up to 16", _micro_batches),
    Dimension(
        "layers",
        "searched",
        "the even split; uneven first and last stages; what is left over spread over the middle; "
        "DeepSpeed's own: even, the first stages first",
    ),
    Dimension(
        "vpp",
        "searched",
        "every number that cuts all stages into equal chunks; and the least number for chunks of "
        "each size, with fewer layers in the last and smaller ones first, the first and last "
        "perhaps empty; over several GPU types every number, for Megatron-LM",
    ),
    Dimension(
        "recompute",
        "searched",
        "none; each useful set of modules; full by uniform:N and block:N for every N",
    ),
    Dimension("ep", "searched", "all divisors of the number of experts", _ep),
    Dimension("etp", "searched", "1 and tp"),
    Dimension(
        "sharding",
        "searched",
        "what the runtime can shard; of Megatron-FSDP parameters: gradients alone are reduced with "
        "every micro-batch too; none takes more memory for the same traffic",
        _sharding,
    ),
    Dimension(
        "shard_group",
        "searched",
        "all copies: the least memory; with sharded parameters also the copies inside one node",
    ),
    Dimension("cp_comm_type", "searched", "with cp > 1: p2p, a2a, allgather", _cp_comm_types),
    Dimension("overlap_ep", "searched", "off and on: hides all-to-all, costs memory", _overlap_ep),
    Dimension(
        "offload_optimizer_fraction",
        "searched",
        "all on the GPU or all on the host, or eighths where the runtime can part it",
        _offloaded_optimizer,
    ),
    Dimension(
        "offload_layers",
        "searched",
        "none; Megatron-LM with pp 1 and no recompute, where more than PCIe 5 leads to the host "
        "(GB200, GB300, GH200, B300): every number below the model's layers",
        _offload_layers,
    ),
    Dimension(
        "sequence_parallel",
        "follows",
        "on with tp > 1: the same traffic, less memory and less repeated work",
    ),
    Dimension("attention", "follows", "flash: less memory and less time", lambda _: ("flash",)),
    Dimension("overlap_grad_reduce", "follows", "on where there are copies: it can only hide time"),
    Dimension("overlap_param_gather", "follows", "on where states are sharded: it can only help"),
    Dimension("overlap_p2p", "follows", "on with vpp > 1, where the runtime has it: only hides"),
    Dimension("overlap_tp", "follows", "on with tp > 1 inside a link domain: only hides time"),
    Dimension(
        "microbatch_group",
        "follows",
        "the least that the runtime accepts: pp where it divides the micro-batches; a larger one "
        "holds more activations and may gain where links are slow: ask for it",
    ),
    Dimension(
        "dispatcher",
        "follows",
        "with ep > 1 the fastest that all GPUs and the runtime have: HybridEP or DeepEP, else "
        "alltoall; allgather, whose memory is not counted, only by --set",
    ),
    Dimension(
        "mesh_dp",
        "searched",
        "over several GPU types, each has a dp, micro-batch and ep of its own; false: one for all",
        lambda _: (True,),
    ),
    Dimension("rank_order", "asked", "tp-cp-ep-dp-pp, the runtime's default"),
    Dimension("offload_activations", "asked", "none: worth it only with modules chosen by hand"),
    Dimension("cuda_graph", "asked", "none: needs static shapes in the training script"),
    Dimension("capacity_factor", "asked", "none: dropping tokens changes the training's result"),
    Dimension("fp8_recipe", "asked", "changes the training's result"),
    Dimension("main_grads_dtype", "asked", "fp32: another changes the training's result"),
    Dimension("grad_reduce_dtype", "asked", "fp32: another changes the training's result"),
    Dimension("master_dtype", "asked", "fp32: another changes the training's result"),
    Dimension("first_moment_dtype", "asked", "fp32: another changes the training's result"),
    Dimension("second_moment_dtype", "asked", "fp32: another changes the training's result"),
)
DIMENSION_BY_NAME = {dimension.name: dimension for dimension in DIMENSIONS}
SETTABLE = tuple(
    name for name in DIMENSION_BY_NAME if name != "layers"
)  # how layers are shared out is ours
SHORT_NAMES = {
    "mb": "micro_batch",
    "offload_optimizer": "offload_optimizer_fraction",
}  # as plans are told
# How a plan's summary says it, and the setting it means.
SUMMARY_WORDS = {
    r"\b(tp|pp|dp|vpp|cp|ep|etp|mb|recompute) (?=\S)": r"\1=",
    r"\bsharded (\w+)": r"sharding=\1",
    r"\bin groups of (\d+)": r"shard_group=\1",
    r"\bgroup (?=\d)": "microbatch_group=",
    r"\bep-overlap\b": "overlap_ep=true",
    r"(?<![=,])\b(deepep|hybridep)\b": r"dispatcher=\1",
    r"\boffload optimizer\b": "offload_optimizer=1",
    r"\boffload ([\d.]+) optimizer\b": r"offload_optimizer=\1",
    r"\boffload (\d+) layers\b": r"offload_layers=\1",
}
INTEGER_DIMENSIONS = frozenset(
    (
        *("tp", "cp", "pp", "dp", "vpp", "micro_batch", "ep", "etp"),
        *("microbatch_group", "shard_group", "offload_layers"),
    )
)


@dataclass(frozen=True, slots=True)
class Space:
    """A workload and the values of each dimension, as narrowed or widened by `--set`."""

    workload: Workload
    settings: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    memo: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)
    """Recompute settings by the size of the largest chunk, worked out once."""

    def values(self, name: str) -> tuple[Any, ...] | None:
        """What was asked for, else the default; None where a dimension depends on the row."""
        if name in self.settings:
            return self.settings[name]
        default = DIMENSION_BY_NAME[name].values
        return default(self.workload) if default else None

    def narrowed(self, wanted: Mapping[str, tuple[Any, ...]]) -> "Space":
        """With these values alone, as far as there are such, where nothing was asked for."""
        found = {}
        for name, values in wanted.items():
            known = self.values(name)
            found[name] = tuple(value for value in values if known is None or value in known)
        some = {name: values for name, values in found.items() if values}
        return Space(self.workload, some | self.settings)

    def allows(self, name: str, value: object) -> bool:
        """Whether a value that depends on the row was not ruled out."""
        return name not in self.settings or value in self.settings[name]


def parse_set(texts: Sequence[str], option: str = "--set") -> dict[str, tuple[Any, ...]]:
    """`tp=4,8` and the like as values of dimensions; `option`: as errors call it.

    >>> parse_set(["tp=4,8", "recompute=none,full:block:4"])
    {'tp': (4, 8), 'recompute': ('none', 'full:block:4')}
    """
    settings: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        name = SHORT_NAMES.get(name, name)
        if not equals or not values.strip():
            raise InputError(f"{option} {shorten(text)}: write KEY=VALUE or KEY=VALUE,VALUE.")
        if name not in SETTABLE:
            like = [each for each in SETTABLE if each != "offload_layers" or "off" in name]
            hint = did_you_mean(name, like, f"The dimensions are {', '.join(SETTABLE)}.")
            raise InputError(f"{option} {shorten(text)}: no dimension {shorten(name)}. {hint}")
        if name in settings:
            raise InputError(f"{option} {name} is given twice; list its values with commas.")
        found = [_value(name, value.strip(), f"{option} {name}") for value in values.split(",")]
        settings[name] = tuple(dict.fromkeys(found))
    return settings


def settings_in_summary(text: str) -> tuple[str, ...]:
    """A plan as its summary names it, in the words of `--set`; those may stand there as they are.

    >>> settings_in_summary("tp 4 pp=3 mb 1 sharded parameters ep-overlap offload optimizer")
    ('tp=4', 'pp=3', 'mb=1', 'sharding=parameters', 'overlap_ep=true', 'offload_optimizer=1')
    >>> settings_in_summary("tp 4 pp 3 vpp 2 group 4")
    ('tp=4', 'pp=3', 'vpp=2', 'microbatch_group=4')
    """
    for said, meant in SUMMARY_WORDS.items():
        text = re.sub(said, meant, text)
    return tuple(text.split())


def _value(name: str, text: str, where: str) -> Any:
    if name in INTEGER_DIMENSIONS:
        least = 0 if name == "offload_layers" else 1
        if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) >= least):
            raise InputError(f"{where} = {shorten(text)}: not a whole number of {least} or more.")
        return int(text)
    if name in (*FLAGS, "mesh_dp"):
        words = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
        if text.lower() not in words:
            raise InputError(f"{where} = {shorten(text)}: use true or false.")
        return words[text.lower()]
    if name == "recompute":
        return str(Recompute.parse(text, where))
    if name == "offload_activations":
        return offload_modules(text, where)
    if name in WORDS:
        if text not in WORDS[name]:
            hint = did_you_mean(text, WORDS[name], f"Use one of {', '.join(WORDS[name])}.")
            raise InputError(f"{where} = {shorten(text)}: not known. {hint}")
        return text
    return _fraction(name, text, where)


def offload_modules(text: str, where: str) -> tuple[str, ...]:
    """`none` or `MODULE+MODULE`, in the order of OFFLOAD_MODULES."""
    wanted = [] if text == "none" else text.split("+")
    for module in wanted:
        if module not in OFFLOAD_MODULES:
            listing = f"The modules are {', '.join(OFFLOAD_MODULES)}."
            hint = did_you_mean(module, OFFLOAD_MODULES, listing)
            raise InputError(f"{where} = {shorten(text)}: no module {shorten(module)}. {hint}")
    return tuple(module for module in OFFLOAD_MODULES if module in wanted)


def _fraction(name: str, text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{where} = {shorten(text)}: not a number.") from None
    least, most = (0.0, 1.0) if name == "offload_optimizer_fraction" else (0.01, 1e6)
    if not least <= value <= most:
        raise InputError(f"{where} = {shorten(text)}: must lie between {least:g} and {most:g}.")
    return value
