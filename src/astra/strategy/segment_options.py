"""Global settings of a pipeline over several GPU types, and how each type may form stages in it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from astra.hardware.cluster import Pool
from astra.hardware.topology import allowed_counts, even_share, widest_tensor_group
from astra.strategy.enumerate import recompute_module_sets
from astra.strategy.recompute import Recompute
from astra.strategy.rules.rule import Rule
from astra.strategy.segment_columns import (
    GlobalSetting,
    SegmentOption,
    SharedDegrees,
    equal_stages,
)
from astra.strategy.space import Space, divisors

MIN_CONTEXT_TOKENS = 4096  # of a GPU, below which context parallelism is tried only if asked for
LATER_SETTINGS = frozenset(("layers", "overlap_tp"))  # that rules on whole plans speak of


def settings_with_options(
    space: Space, rules: Sequence[Rule]
) -> list[tuple[GlobalSetting, list[SegmentOption]]]:
    """Every global setting with the options that these rules accept by themselves."""
    options_of = _OptionsOf(space)
    pairs = [
        (setting, option) for setting in global_settings(space) for option in options_of(setting)
    ]
    if not pairs:
        return []
    asked = [rule for rule in rules if not LATER_SETTINGS & set(rule.settings)]
    table = equal_stages(space.workload, pairs)
    legal = np.logical_and.reduce([rule.holds(table, space.workload.task) for rule in asked])
    found: dict[GlobalSetting, list[SegmentOption]] = {}
    for (setting, option), holds in zip(pairs, legal.tolist(), strict=True):
        if holds:
            found.setdefault(setting, []).append(option)
    return list(found.items())


def global_settings(space: Space) -> list[GlobalSetting]:
    """All global settings of the space with one chunk for each stage."""
    batch, found = space.workload.global_batch, []
    comms, shardings = space.values("cp_comm_type") or (), space.values("sharding") or ()
    dims = product(
        _batch_splits(space),
        context_degrees(space),
        comms,
        shardings,
        (False, True),
        space.settings.get("offload_optimizer_fraction", (0.0,)),
    )
    for (samples, shared), cp, comm, sharding, overlap, offload in dims:
        if cp == 1 and comm != comms[0]:
            continue  # no context is exchanged
        if samples * cp == 1 and sharding != shardings[0]:
            continue  # there is one copy of everything
        traffic = cp, comm, sharding, overlap, offload
        found.append(GlobalSetting(samples, batch // samples, *traffic, shared))
    return found


def recompute_settings(space: Space) -> list[Recompute | None]:
    """What plans may recompute: one setting for all stages; None: each stage as few whole layers
    as it must, which Megatron-LM cannot do. There a number of layers is a power of two.
    """
    asked = space.settings.get("recompute")
    if asked is not None:
        return [Recompute.parse(text) for text in asked]
    modules = [Recompute("selective", 0, names) for names in recompute_module_sets(space)]
    if space.workload.task.runtime != "megatron":
        return [None, *modules]
    layers = space.workload.task.model.layers
    powers = [2**power for power in range(layers.bit_length()) if 2**power < layers]
    blocks = [Recompute("full:block", number, ()) for number in powers]
    return [Recompute(), Recompute("full:uniform", 1, ()), *blocks, *modules]


def context_degrees(space: Space) -> tuple[int, ...]:
    """Context parallelism only where sequences are long, and none under FlagScale, which refuses
    it over several types.
    """
    values = tuple(space.values("cp") or ())
    if space.workload.task.runtime == "flagscale":
        return tuple(cp for cp in values if cp == 1)
    if "cp" in space.settings:
        return values
    most = space.workload.seq_len // MIN_CONTEXT_TOKENS
    return tuple(cp for cp in values if cp <= most) or (1,)


def _batch_splits(space: Space) -> list[tuple[int, SharedDegrees]]:
    """Samples of one micro-batch of all replicas, and the degrees that segments share."""
    batch, runtime = space.workload.global_batch, space.workload.task.runtime
    dps, sizes = space.settings.get("dp") or divisors(batch), space.values("micro_batch") or ()
    pairs = [(dp, size) for dp, size in product(dps, sizes) if batch % (dp * size) == 0]
    found: list[tuple[int, SharedDegrees]] = []
    if runtime == "megatron":
        for (dp, size), shared in product(pairs, _one_config(space)):
            found.append((dp * size, replace(shared, dp=dp)))
        return list(dict.fromkeys(found))
    own = space.settings.get("mesh_dp", (True,))
    if False in own:
        eps = space.values("ep") or ()
        found += [
            (dp * size, SharedDegrees(dp=dp, ep=ep)) for (dp, size), ep in product(pairs, eps)
        ]
    if True in own:
        found += [(dp * size, SharedDegrees()) for dp, size in pairs]
    return list(dict.fromkeys(found))


def _one_config(space: Space) -> list[SharedDegrees]:
    """Megatron-LM: one tp, ep and etp for all stages."""
    pools = space.workload.task.cluster.pools
    reach = sorted({tp for pool in pools for tp in divisors(widest_tensor_group(pool.gpu))})
    found = []
    for tp, ep in product(space.settings.get("tp") or reach, space.values("ep") or ()):
        found += [SharedDegrees(tp=tp, ep=ep, etp=etp) for etp in _expert_tensor(space, tp)]
    return found


def _expert_tensor(space: Space, tp: int) -> tuple[int, ...]:
    asked = space.settings.get("etp")
    if asked is None:
        asked = (1, tp) if space.workload.task.model.moe is not None else (1,)
    return tuple(dict.fromkeys(asked))


class _OptionsOf:
    """The options of a global setting, before any rule."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.known: dict[tuple[int, int], list[tuple[int, ...]]] = {}  # counts by type, stage GPUs

    def __call__(self, setting: GlobalSetting) -> Iterator[SegmentOption]:
        for row, pool in enumerate(self.space.workload.task.cluster.pools):
            for tp, dp, ep, etp in self._degrees(setting, pool):
                gpus = tp * dp * setting.cp
                if (row, gpus) not in self.known:
                    self.known[row, gpus] = _stage_counts(self.space, pool, gpus)
                if gpus % (ep * etp) == 0:
                    size = setting.samples // dp
                    for counts in self.known[row, gpus]:
                        yield SegmentOption(row, tp, dp, ep, etp, size, gpus, counts)

    def _degrees(self, setting: GlobalSetting, pool: Pool) -> Iterator[tuple[int, int, int, int]]:
        """(tp, dp, ep, etp) of the segments on one type."""
        space, shared = self.space, setting.shared
        sizes = [size for size in space.values("micro_batch") or () if setting.samples % size == 0]
        dps = [setting.samples // size for size in sizes]
        dps = [dp for dp in dps if space.allows("dp", dp) and shared.dp in (None, dp)]
        dps = [dp for dp in dps if dp * setting.cp <= pool.count]
        eps = [ep for ep in space.values("ep") or () if shared.ep in (None, ep)]
        for tp in space.settings.get("tp") or divisors(widest_tensor_group(pool.gpu)):
            if setting.overlap_tp and not 1 < tp <= pool.gpu.link.domain_gpus:
                continue
            if tp > widest_tensor_group(pool.gpu) or shared.tp not in (None, tp):
                continue
            etps = [etp for etp in _expert_tensor(space, tp) if shared.etp in (None, etp)]
            yield from product((tp,), dps, eps, etps)


def _stage_counts(space: Space, pool: Pool, stage_gpus: int) -> list[tuple[int, ...]]:
    """Numbers of stages that take GPUs as they are rented, by the share they have of a node."""
    workload = space.workload
    cap = min(pool.count, workload.task.cluster.max_gpus or pool.count)
    counts = [count for count in allowed_counts(pool) if count <= cap]
    if workload.use_all:
        counts = [count for count in counts if count == allowed_counts(pool)[-1]]
    layers = workload.task.model.layers
    fitting = [n for n in counts if n % stage_gpus == 0 and n // stage_gpus <= layers]
    if not fitting:
        return []
    table = np.array(fitting)
    domain = even_share(table, pool.gpu.link.domain_gpus).tolist()
    node = even_share(table, pool.gpu.node.gpus).tolist()
    by_share: dict[tuple[int, int], list[int]] = {}
    for count, *share in zip(fitting, domain, node, strict=True):
        by_share.setdefault((share[0], share[1]), []).append(count // stage_gpus)
    return [tuple(stages) for stages in by_share.values()]
