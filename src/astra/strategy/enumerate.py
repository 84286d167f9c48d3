"""All plans of a space for one GPU type, as tables of some ten thousand rows each."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from astra.columns import factorized
from astra.hardware.topology import allowed_counts
from astra.model.layer_kinds import layer_kinds
from astra.model.shape import Model
from astra.strategy.complete import fp8_recipe
from astra.strategy.dispatchers import dispatchers_for
from astra.strategy.layer_splits import SLOTS, ColumnTable, LayerSplits, repeat_rows, take_rows
from astra.strategy.microbatch_group import microbatch_groups_for
from astra.strategy.plans import (
    COLUMNS,
    OFFLOAD_MODULES,
    PLAN_AXES,
    SLOT_COLUMNS,
    UNUSED,
    Flags,
    Floats,
    Ints,
    Plans,
    code,
    column_dtype,
)
from astra.strategy.recompute import MODULES, Recompute
from astra.strategy.space import Space, Workload, divisors

ROWS_PER_TABLE = 1 << 16  # large enough that what is done once per table does not count
SHARDS_PARAMETERS = code("sharding", "parameters")

# Settings given by other settings unless they were asked for.
DERIVED_SETTINGS = (
    "sequence_parallel",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_p2p",
    "overlap_tp",
    "microbatch_group",
    "shard_group",
    "dispatcher",
)

# Options that decide whether a row is a plan at all.
CROSSED_OPTIONS = ("ep", "etp", "sharding", "in_node", "cp_comm_type", "overlap_ep")


def enumerate_layouts(space: Space) -> Iterator[Plans]:
    """All plans but for how much is recomputed and offloaded: nothing is, in these."""
    layouts = Layouts(space)
    for _, table in layouts.tables(np.arange(len(layouts))):
        yield table


class Layouts:
    """The layouts of a space: degrees, each with every option and every split of the layers.

    A search bounds degrees with an option before it looks at the splits of the layers, and a
    layout before it looks at its variants: these only take longer. Options are numbered over all
    degrees, those of the first degrees first.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._splits = LayerSplits(space)
        self._options = _options(space)
        degrees = _degrees(space)
        degrees = take_rows(degrees, self._splits.counts[degrees["pp"]] > 0)
        degrees["group"] = _microbatch_groups(degrees, space.workload)
        degrees["interleaved"] = self._splits.interleaved[degrees["pp"]]
        node_gpus = space.workload.task.cluster.pools[0].gpu.node.gpus
        in_node = np.gcd(degrees["dp"] * degrees["cp"], np.maximum(node_gpus // degrees["tp"], 1))
        degrees["copies_in_node"] = in_node
        first, kind = _distinct([degrees[name] for name in ("tp", "cp", "dp", "interleaved")])
        some = take_rows(degrees, first)
        possible = _possible_options(some, self._options, space.workload)  # (kind, option)
        options = possible.sum(axis=1)
        has_options = options[kind] > 0
        self._degrees, self._kind = take_rows(degrees, has_options), kind[has_options]
        self._possible = np.nonzero(possible)[1]
        self._first_possible = np.cumsum(options) - options
        self.counts: Ints = options[self._kind]  # (degrees,) how many options each has
        self.starts: Ints = np.cumsum(self.counts) - self.counts  # and the first of them
        overlaps = np.broadcast_to(self._options["overlap_ep"], possible.shape)
        # Of them those that need interleaved pipelines, or a stage alone.
        self.overlap_ep_counts: Ints = (possible & overlaps).sum(axis=1)[self._kind]

    def __len__(self) -> int:
        """How many degrees."""
        return len(self._degrees["pp"])

    @property
    def gpus(self) -> Ints:
        """Of each of the degrees."""
        degrees = self._degrees
        total: Ints = degrees["tp"] * degrees["cp"] * degrees["pp"] * degrees["dp"]
        return total

    @property
    def stages(self) -> Ints:
        """Of each of the degrees."""
        return self._degrees["pp"]

    @property
    def micro_batches(self) -> Ints:
        """Of each of the degrees."""
        found: Ints = self.space.workload.global_batch // (
            self._degrees["micro_batch"] * self._degrees["dp"]
        )
        return found

    @property
    def max_stages(self) -> int:
        """The most stages there may be."""
        return len(self._splits.counts) - 1

    def splits(self) -> tuple[Ints, Flags, Ints]:
        """Of every split: layers of the largest chunk, whether it is interleaved or has one stage,
        and stages.
        """
        table = self._splits.table
        listed = [max(chunks) for chunks in self._splits.chunk_layers]
        even = -(-table[1 : 2 * SLOTS : 2].max(axis=0) // table[-2])
        chunk = np.where(table[-1] < 0, even, np.array([*listed, 0], np.int64)[table[-1]])
        stages = table[0 : 2 * SLOTS : 2].sum(axis=0)
        return chunk, (table[-2] > 1) | (stages == 1), stages

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Ranges of degrees and of their options, about a quarter of a table each."""
        for degrees in _blocks(self.counts, ROWS_PER_TABLE // 4):
            last = degrees.stop - 1
            yield degrees, slice(self.starts[degrees.start], self.starts[last] + self.counts[last])

    def option_tables(self) -> Iterator[Plans]:
        """Degrees with each option once, with the first split of the layers, block by block."""
        for degrees, _ in self.blocks():
            rows = self._with_options(np.arange(degrees.start, degrees.stop))
            yield self._plans(self._splits.join(rows, np.ones(len(rows["pp"]), np.int64)))

    def least_over_options(self, values: Callable[[slice], Floats]) -> Floats:
        """(degrees,) The least over the options of each, of what is known of these options."""
        found = [
            np.minimum.reduceat(values(options), self.starts[degrees] - options.start)
            for degrees, options in self.blocks()
        ]
        return np.concatenate([np.zeros(0), *found])

    def tables(
        self, order: Ints, first: int | None = None, only: Flags | None = None
    ) -> Iterator[tuple[Ints, Plans]]:
        """Every layout and its option, degrees in this order, in tables that grow.

        `first`: about how many layouts the first table has. `only` (option,): the wanted ones.
        """
        counts = self.counts if only is None else np.add.reduceat(only, self.starts, dtype=np.int64)
        layouts = self._splits.counts[self.stages] * counts
        for rows in _blocks(layouts[order], first or ROWS_PER_TABLE // 4):
            degrees = self._with_options(order[rows])
            if only is not None:
                degrees = take_rows(degrees, only[degrees["option"]])
            joined = self._splits.join(degrees, self._splits.counts[degrees["pp"]])
            table = _possible_layouts(joined, self.space)
            if len(table["tp"]):
                yield table["option"], self._plans(table)

    def _with_options(self, degrees: Ints) -> ColumnTable:
        """These degrees with every option."""
        rows, within = repeat_rows(self.counts[degrees])
        rows = degrees[rows]
        options = self._possible[self._first_possible[self._kind[rows]] + within]
        table = take_rows(self._options, options) | take_rows(self._degrees, rows)
        del table["interleaved"]
        table["etp"] = np.where(table["etp"] == 0, table["tp"], table["etp"])
        table["option"] = self.starts[rows] + within
        return table

    def _plans(self, table: ColumnTable) -> Plans:
        count = len(table["tp"])
        table["recompute"] = np.zeros(count, np.int8)
        table["recompute_layers"] = table["recompute_modules"] = np.zeros(count, np.int64)
        table["offload_optimizer_fraction"] = np.zeros(count)
        table["offload_layers"] = np.zeros(count, np.int64)
        return _plans(table, self.space, self._splits.chunk_layers)


def _blocks(per_row: Ints, first: int) -> Iterator[slice]:
    """Ranges of rows that grow to about a quarter of a table each, before recompute."""
    edges = np.cumsum(per_row)
    start, size = 0, first
    while start < len(per_row):
        done = int(edges[start - 1]) if start else 0
        stop = int(np.searchsorted(edges, done + size, side="right"))
        stop = min(max(stop, start + 1), len(per_row))
        yield slice(start, stop)
        start, size = stop, min(4 * size, ROWS_PER_TABLE // 4)


def _degrees(space: Space) -> ColumnTable:
    """tp, cp, pp, micro-batch and dp whose product can be rented and divides the batch.

    Where others do part of the batch, any number of replicas that makes a count that can be rented.
    """
    workload = space.workload
    model, pool = workload.task.model, workload.task.cluster.pools[0]
    batch = workload.global_batch
    cap = min(pool.count, workload.task.cluster.max_gpus or pool.count)
    stages = range(1, model.layers + 1)
    rented = workload.gpu_counts or allowed_counts(pool)
    counts = [cap] if workload.use_all else [n for n in rented if n <= cap]
    values: dict[str, tuple[int, ...]] = {
        "tp": space.values("tp") or (),
        "cp": space.values("cp") or (),
        "pp": tuple(pp for pp in space.settings.get("pp", stages) if pp in stages),
        "micro_batch": space.values("micro_batch") or (),
        "dp": space.settings.get("dp") or divisors(batch),
    }
    if workload.part_of_batch:
        values["dp"] = tuple(counts)
    grids = np.meshgrid(*(np.array(column, np.int64) for column in values.values()), indexing="ij")
    columns = {name: grid.ravel() for name, grid in zip(values, grids, strict=True)}
    if workload.part_of_batch:
        return _part_degrees(columns, space)
    gpus = 1.0 * columns["tp"] * columns["cp"] * columns["pp"] * columns["dp"]  # never overflows
    rentable = np.zeros(cap + 2, np.bool_)
    rentable[counts] = True
    samples = columns["micro_batch"] * columns["dp"]
    fits = rentable[np.minimum(gpus, cap + 1).astype(np.int64)] & (batch % samples == 0)
    return {name: column[fits] for name, column in columns.items()}


def _part_degrees(columns: ColumnTable, space: Space) -> ColumnTable:
    """With numbers of GPUs for dp: those rows whose GPUs are whole replicas."""
    replica_gpus = columns["tp"] * columns["cp"] * columns["pp"]
    dp, rest = np.divmod(columns["dp"], replica_gpus)
    possible = (rest == 0) & (dp > 0) & (columns["micro_batch"] * dp <= space.workload.global_batch)
    if "dp" in space.settings:
        possible &= np.isin(dp, space.settings["dp"])
    return take_rows(columns | {"dp": dp}, possible)


def usual_settings(workload: Workload) -> dict[str, Any]:
    """The one value that is tried of a dimension unless another is asked for."""
    return {
        "rank_order": "tp-cp-ep-dp-pp",
        "attention": "flash",
        "cuda_graph": "none",
        "offload_activations": (),
        "capacity_factor": np.nan,
        "main_grads_dtype": "fp32",
        "grad_reduce_dtype": "fp32",
        "master_dtype": "fp32",
        "first_moment_dtype": "fp32",
        "second_moment_dtype": "fp32",
        "fp8_recipe": _fp8_recipe(workload),
    }


def _options(space: Space) -> ColumnTable:
    """What is multiplied out on every row: experts, sharding, traffic, offload."""
    moe, usual = space.workload.task.model.moe is not None, usual_settings(space.workload)
    dims = {name: space.settings.get(name, (value,)) for name, value in usual.items()}
    for name in ("ep", "sharding", "cp_comm_type", "overlap_ep"):
        dims[name] = space.values(name) or ()
    dims["etp"] = space.settings.get("etp", (1, 0) if moe else (1,))  # 0 stands for tp
    all_copies = "shard_group" in space.settings or space.workload.part_of_batch
    dims["in_node"] = (False,) if all_copies else (False, True)
    dims |= {name: space.settings[name] for name in DERIVED_SETTINGS if name in space.settings}
    alone = {name: values[0] for name, values in dims.items() if len(values) == 1}
    columns: ColumnTable = {  # one number for all rows, unless it is worked with
        name: np.array(_coded(name, value), column_dtype(name)) for name, value in alone.items()
    }
    crossed = {name: dims[name] for name in dims if name not in alone or name in CROSSED_OPTIONS}
    rows = list(product(*crossed.values()))
    for place, name in enumerate(crossed):
        values = [_coded(name, row[place]) for row in rows]
        columns[name] = np.array(values, column_dtype(name) if name in COLUMNS else None)
    return columns


def _fp8_recipe(workload: Workload) -> str | None:
    """What an expert would set: block scaling where the GPU has it."""
    if workload.precision != "fp8":
        return None
    return fp8_recipe(workload.task.cluster)


def _coded(name: str, value: Any) -> Any:
    if isinstance(value, str) or value is None:
        return code(name, value)
    if isinstance(value, tuple):
        return sum(1 << OFFLOAD_MODULES.index(module) for module in value)
    return value


def _possible_options(degrees: ColumnTable, options: ColumnTable, workload: Workload) -> Flags:
    """(degrees, option) All but those that are no plan or one under two names.

    Not rules: a group of one has no traffic to choose, and experts need whole groups.
    """
    tp, cp, dp, in_node, interleaved = (
        degrees[name][:, np.newaxis] for name in ("tp", "cp", "dp", "copies_in_node", "interleaved")
    )
    ep, sharding = options["ep"], options["sharding"]
    is_tp = options["etp"] == 0
    etp = np.where(is_tp, tp, options["etp"])
    once = ~(is_tp & (tp == 1))  # etp 1 and etp tp are one
    once &= (cp > 1) | (options["cp_comm_type"] == options["cp_comm_type"][:1])
    copies = dp * cp
    once &= (copies > 1) | (sharding == sharding[:1]) | workload.part_of_batch
    inside = (sharding == SHARDS_PARAMETERS) & (in_node > 1) & (in_node < copies)
    once &= ~options["in_node"] | inside
    whole = tp * copies % (ep * etp) == 0
    found: Flags = once & whole & (~options["overlap_ep"] | ((ep > 1) & interleaved))
    return found


def _distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """The first row of every kind, rows being of one kind where all columns are equal; and the
    kind of each row.
    """
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        known, index = factorized(column)
        codes = codes * len(known) + index
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    return first, kind


def _possible_layouts(table: ColumnTable, space: Space) -> ColumnTable:
    """The same for what depends on the pipeline: whether it is interleaved."""
    interleaved = table["vpp"] > 1
    possible = ~table["overlap_ep"] | interleaved | (table["pp"] == 1)
    if groups := space.settings.get("microbatch_group"):  # means nothing with one chunk
        group = table["microbatch_group"]
        possible &= interleaved | (group == groups[0])
        table["microbatch_group"] = np.where(interleaved, group, table["pp"])
    return take_rows(table, possible)


def recompute_settings(space: Space, chunk: int) -> Ints:
    """Codes (mode, layers, modules) of the settings worth trying for chunks of this size."""
    if "recompute" in space.settings:
        return _codes(tuple(Recompute.parse(text) for text in space.settings["recompute"]))
    uniform, block = chunk, chunk - 1  # block over all layers is uniform:1
    if space.workload.task.runtime in ("fsdp", "deepspeed"):
        uniform, block = 1, 0
    selective = [Recompute("selective", 0, modules) for modules in recompute_module_sets(space)]
    whole = _codes((Recompute(), *selective))
    codes = [(code("recompute", "full:uniform"), n, 0) for n in range(1, uniform + 1)]
    codes += [(code("recompute", "full:block"), n, 0) for n in range(1, block + 1)]
    return np.concatenate([whole, np.array(codes, np.int64).reshape(-1, 3)])


@lru_cache
def _codes(settings: tuple[Recompute, ...]) -> Ints:
    rows = [(code("recompute", r.mode), r.layers, r.module_bits) for r in settings]
    return np.array(rows, np.int64).reshape(-1, 3)


@lru_cache
def _useful_modules(model: Model, fused: bool) -> tuple[str, ...]:
    """What holds activations worth dropping; fused attention keeps no scores."""
    useful = ["layernorm"] if fused else ["core_attn", "layernorm"]
    if any(kind.mlp == "dense" for kind in layer_kinds(model).kinds):
        useful.append("mlp")
    if model.moe is not None:
        useful += ["moe", "moe_act"]
        if model.moe.shared_ffn:
            useful.append("shared_experts")
    if model.mla is not None:
        useful.append("mla_up_proj")
    return tuple(module for module in MODULES if module in useful)


def recompute_module_sets(space: Space) -> list[tuple[str, ...]]:
    """Every set of useful modules; recomputing all of an MoE layer leaves nothing of it over."""
    task = space.workload.task
    if task.runtime == "deepspeed":
        return []
    if task.runtime == "fsdp":
        return [("core_attn",)]  # torchtitan chooses operators by itself
    useful = _useful_modules(task.model, space.values("attention") == ("flash",))
    sets = []
    for bits in range(1, 1 << len(useful)):
        modules = tuple(module for place, module in enumerate(useful) if bits >> place & 1)
        inside = {"moe_act", "shared_experts"} & set(modules)
        if not ("moe" in modules and inside):
            sets.append(modules)
    return sets


def _plans(table: ColumnTable, space: Space, chunk_layers: tuple[tuple[int, ...], ...]) -> Plans:
    workload = space.workload
    rows = len(table["tp"])
    table |= _derived_settings(table, space)
    numbers = {
        "global_batch": workload.global_batch,
        "seq_len": workload.seq_len,
        "mtp_layers": workload.mtp_layers,
        "precision": code("precision", workload.precision),
    }
    columns: ColumnTable = {}
    for name in COLUMNS:
        if PLAN_AXES.get(name, 1) == 1:
            value = numbers[name] if name in numbers else table[name]
            columns[name] = np.broadcast_to(np.asarray(value, column_dtype(name)), rows)
    micro_batches = workload.global_batch // (table["micro_batch"] * table["dp"])
    if workload.part_of_batch:
        micro_batches = np.where(table["vpp"] > 1, table["pp"], 1)
    columns["replicas"] = table["dp"][np.newaxis]
    columns["micro_batches"] = micro_batches[np.newaxis]
    return Plans(**columns, **_slot_columns(table), chunk_layers=chunk_layers)


def _derived_settings(table: ColumnTable, space: Space) -> ColumnTable:
    """Settings that can only help, or that others fix (`follows` in the list of dimensions)."""
    gpu = space.workload.task.cluster.pools[0].gpu
    runtime = space.workload.task.runtime
    megatron = runtime in ("megatron", "flagscale", "any")
    tensor = table["tp"] > 1
    copies = table["dp"] * table["cp"]
    sharded = table["sharding"] != code("sharding", "none")
    asked = {name: table[name] for name in DERIVED_SETTINGS if name in space.settings}
    sequence = asked.get("sequence_parallel", tensor & (runtime != "deepspeed"))
    reduces = asked.get("overlap_grad_reduce", copies > 1)
    derived: ColumnTable = {
        "sequence_parallel": sequence,
        "overlap_grad_reduce": reduces,
        "overlap_param_gather": reduces & (copies > 1) & sharded,
        "overlap_p2p": table["vpp"] > 1,
        "overlap_tp": sequence & tensor & (table["tp"] <= gpu.link.domain_gpus) & megatron,
        "microbatch_group": np.where(table["vpp"] > 1, table["group"], table["pp"]),
        "shard_group": np.where(
            sharded, np.where(table["in_node"], table["copies_in_node"], copies), 1
        ),
        "schedule": np.where(table["vpp"] > 1, 1, 0).astype(np.int8),
        "dispatcher": dispatchers_for(space.workload, table["ep"], table["etp"]),
    }
    return derived | asked


def _microbatch_groups(degrees: ColumnTable, workload: Workload) -> Ints:
    """Micro-batches in a row on one chunk: as few as the runtime accepts.

    PyTorch's interleaved schedule shares them out over its rounds by itself.
    """
    stages = degrees["pp"]
    if workload.part_of_batch:
        return stages
    count = workload.global_batch // (degrees["micro_batch"] * degrees["dp"])
    if workload.task.runtime == "fsdp":
        return count // np.maximum(count // stages, 1)
    return microbatch_groups_for(stages, count)


def _slot_columns(table: ColumnTable) -> ColumnTable:
    """(pipeline, slot, plan) columns; a slot without stages is harmless."""
    used = max(slot for slot in range(SLOTS) if slot == 0 or table[f"stages{slot}"].any()) + 1
    stages = np.stack([table[f"stages{slot}"] for slot in range(used)])[np.newaxis]
    layers = np.stack([table[f"layers{slot}"] for slot in range(used)])[np.newaxis]
    columns: ColumnTable = {"gpu": np.zeros_like(stages), "stages": stages, "layers": layers}
    sources = {"segment_ep": "ep", "segment_etp": "etp", "segment_micro_batch": "micro_batch"}
    for name in SLOT_COLUMNS[len(columns) :]:
        values = table[sources.get(name, name)]
        unused = np.asarray(UNUSED.get(name, 1), values.dtype)
        columns[name] = np.where(stages > 0, values, unused)
    return columns
