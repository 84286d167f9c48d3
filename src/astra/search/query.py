"""All that was asked, of one batch: model, machines, what narrows the space, and the goal."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import msgspec

from astra.cost.price import MARGIN
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.stack import Stack
from astra.model.shape import Model
from astra.money.catalogue import Offer
from astra.money.options import Goals, MoneyOptions
from astra.notes import Note
from astra.search.objectives import OBJECTIVES
from astra.strategy.plan import Runtime
from astra.strategy.plans import Task
from astra.strategy.rules.registry import rules_for
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question, typed. JSON's `request` is made of it and read back into it by `request.py`."""

    model: Model
    cluster: Cluster
    stack: Stack
    global_batch: int
    seq_len: int
    runtimes: tuple[Runtime, ...] = ("megatron",)  # whose plans are wanted
    precision: str = "bf16"
    mtp_layers: int = 0
    use_all: bool = False  # no fewer GPUs than there are
    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # `--set`, parsed
    set_words: tuple[str, ...] = ()  # and as it was typed
    user_rules: tuple[Rule, ...] = ()
    rules_file: str | None = None
    rule_texts: tuple[str, ...] = ()  # where they are in no file
    objective: str = "time"  # a word of `OBJECTIVES`
    min_tokens_per_s: float = 0.0  # with objective gpus
    money: MoneyOptions | None = None  # None: nobody speaks of it
    goals: Goals | None = None  # of the money, in numbers
    offers: tuple[Offer, ...] | None = None  # for rent; None: as `money` says
    top: int = 10
    fold: bool = True  # near-identical plans as one
    exact: bool = False  # over several GPU types: look at ten times as much
    margin: float = MARGIN  # of the usable memory, kept free
    risk: str = "none"  # a word of `RISKS`
    faster_than_s: float = inf  # on one GPU type: no other plan is of use
    pipeline_model: str = "simulated"  # paper: the paper's formula beside it
    suggest: bool = True  # where nothing fits, look for what would help
    notes: tuple[Note, ...] = ()  # on how the question was read

    @property
    def runtime(self) -> Runtime:
        """The first that is asked."""
        return self.runtimes[0]

    @property
    def is_for_money(self) -> bool:
        """Whether hours are weighed against dollars."""
        return OBJECTIVES[self.objective].is_for_money

    @property
    def task(self) -> Task:
        """What holds for all plans of the first runtime."""
        return Task(
            model=self.model,
            cluster=self.cluster,
            runtime=self.runtime,
            stack=self.stack.full_name,
        )

    @property
    def space(self) -> Space:
        """The plans of the first runtime that may be tried."""
        workload = Workload(
            task=self.task,
            global_batch=self.global_batch,
            seq_len=self.seq_len,
            mtp_layers=self.mtp_layers,
            precision=self.precision,
            use_all=self.use_all,
        )
        return Space(workload, dict(self.settings))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Those of the first runtime, and the user's own."""
        return (*rules_for(self.runtime), *self.user_rules)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.seq_len

    def on(self, cluster: Cluster) -> "Query":
        """The same on other machines."""
        return replace(self, cluster=cluster)

    def on_pools(self, pools: tuple[Pool, ...]) -> "Query":
        """The same on other machines, as many in all as there are."""
        return self.on(msgspec.structs.replace(self.cluster, pools=pools, max_gpus=None))

    def of_runtime(self, runtime: Runtime) -> "Query":
        """The same for plans of one runtime."""
        return replace(self, runtimes=(runtime,))


def query_of_space(space: Space, stack: Stack, **changes: Any) -> Query:
    """The question that a space is the space of."""
    workload, task = space.workload, space.workload.task
    names = ("global_batch", "seq_len", "precision", "mtp_layers", "use_all")
    same = {name: getattr(workload, name) for name in names}
    query = Query(model=task.model, cluster=task.cluster, stack=stack, **same)
    return replace(query, **{"runtimes": (task.runtime,), "settings": space.settings, **changes})
