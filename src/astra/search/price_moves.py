"""How far a price must move for the answer to change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import msgspec
import numpy as np

from astra.errors import InputError
from astra.files import convert
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.stack import find_stack
from astra.money.frontier import frontier
from astra.money.options import goals_of, money_options_of
from astra.search.answer import Wanted
from astra.search.explained import PriceMove, Rival, Say
from astra.search.market_answer import Asked, Scene, points_of, scene_of, searched
from astra.search.priced import Money, Priced
from astra.search.wished import wished_of
from astra.strategy.own_rules import read_own_rules
from astra.strategy.plan import Plan, Runtime
from astra.strategy.plans import Task
from astra.strategy.space import Question, Space, parse_set

NEAR = 1e-9  # relative; beside a turn


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a result keeps of the question about money that it answers."""

    gpus: dict[str, int]
    global_batch: int
    seq_len: int
    runtime: Runtime
    stack: str
    precision: str
    memory_margin: float
    money: dict[str, Any]
    max_gpus: int | None = None
    set: tuple[str, ...] = ()
    rules: str | None = None
    top: int = 10
    own_gpus: tuple[Gpu, ...] = ()


def asked_again(request: Mapping[str, object], plan: Plan, where: str) -> Asked:
    """The question of a result once more; its model is in its plans."""
    from pathlib import Path

    said = convert(dict(request), Request, f"{where}: request")
    users = [pool.gpu for pool in plan.cluster.pools if pool.gpu.source.kind == "user"]
    own = {gpu.name: gpu for gpu in (*users, *said.own_gpus)}
    pools = tuple(
        Pool(gpu=own.get(name) or find_gpu(name)[0], count=count, described=name in own)
        for name, count in said.gpus.items()
    )
    cluster = Cluster(name="asked", pools=pools, max_gpus=said.max_gpus)
    task = Task(model=plan.model, cluster=cluster, runtime=said.runtime, stack=said.stack)
    question = Question(task, said.global_batch, said.seq_len, plan.mtp_layers, said.precision)
    rules = read_own_rules(Path(said.rules), task) if said.rules else ()
    wish = money_options_of(said.money)
    wanted = Wanted(
        space=Space(question, parse_set(said.set)),
        stack=find_stack(said.stack),
        own_rules=rules,
        top=said.top,
        margin=said.memory_margin,
    )
    return Asked(wanted=wanted, wish=wish, goals=goals_of(wish))


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan that may be the answer, and what of its dollars is rent of which GPU type."""

    summary: str
    gpus: dict[str, int]
    hours: float
    usd: float
    rent_usd: dict[str, float]

    def usd_at(self, gpu: str, factor: float) -> float:
        """With the prices of one type so many times as high."""
        return self.usd + (factor - 1) * self.rent_usd.get(gpu, 0.0)


def choice_of(point: Priced) -> Choice:
    """Of a plan with hours and dollars."""
    assert point.money is not None and point.hours is not None and point.usd is not None
    return Choice(
        point.summary, point.gpus, point.hours, point.usd, _rents(point.money, point.hours)
    )


def _rents(money: "Money | _Terms", hours: float) -> dict[str, float]:
    return {rent.gpu: rent.nodes * rent.node_usd_per_hour * hours for rent in money.rents}


class _Rent(msgspec.Struct, frozen=True, kw_only=True):
    gpu: str
    nodes: int
    node_usd_per_hour: float


class _Terms(msgspec.Struct, frozen=True, kw_only=True):
    rents: tuple[_Rent, ...]


class _Point(msgspec.Struct, frozen=True, kw_only=True):
    summary: str
    gpus: dict[str, int]
    hours: float
    usd: float
    money: _Terms


def choice_in(point: object, where: str) -> Choice:
    """Of a point of the frontier in a file."""
    said = convert(point, _Point, f"{where}: frontier")
    return Choice(said.summary, said.gpus, said.hours, said.usd, _rents(said.money, said.hours))


def price_moves(
    asked: Asked, say: Say, mixed: Sequence[Choice] = ()
) -> tuple[tuple[PriceMove, ...], tuple[str, ...]]:
    """For every GPU type: the least change of its prices alone with which another plan is chosen.

    Prices of a type scale all its rents alike, so what may be chosen on one type at any price is
    on its own frontier. `mixed`: plans on several types that are on the frontier as prices are;
    others are not looked for, which is said.
    """
    alone = changed(asked, wish=msgspec.structs.replace(asked.wish, mixed=False))
    scene = scene_of(alone)
    names = [pool.gpu.name for pool in asked.wanted.space.question.task.cluster.pools]
    choices = list(mixed)
    for name in names:
        say(f"what {name} alone could do")
        market = _only(scene, name)
        found, _ = searched(alone, market)
        choices += [choice_of(point) for point in points_of(alone, market, found)]
    if not choices:
        raise InputError("no plan fits, so no price can change the answer.")
    moves = tuple(_move(name, choices, asked) for name in names)
    said = "price moves: of plans that mix GPU types only those on today's frontier are looked at"
    return moves, (said,) if mixed else ()


def _only(scene: Scene, name: str) -> Scene:
    """The market without any other type."""
    space = scene.wanted.space
    question = space.question
    pools = tuple(pool for pool in question.task.cluster.pools if pool.gpu.name == name)
    cluster = msgspec.structs.replace(question.task.cluster, pools=pools)
    task = msgspec.structs.replace(question.task, cluster=cluster)
    smaller = Space(changed(question, task=task), space.chosen)
    return changed(scene, wanted=changed(scene.wanted, space=smaller))


def _chosen(gpu: str, factor: float, choices: Sequence[Choice], asked: Asked) -> Choice:
    """The answer among these with the prices of one type so many times as high."""
    hours = np.array([each.hours for each in choices])
    usd = np.array([each.usd_at(gpu, factor) for each in choices])
    rows = frontier(hours, usd)
    goals = asked.goals
    wished = wished_of(hours[rows], usd[rows], goals)
    plain = 0 if goals.order == "throughput" else len(rows) - 1
    return choices[rows[plain if wished is None else wished.rank - 1]]


def _turns(gpu: str, best: Choice, choices: Sequence[Choice], asked: Asked) -> list[float]:
    """Factors at which the choice may turn: a plan costs as much as the answer, or the budget, or
    is over the budget by as large a share as another is late."""
    goals, found = asked.goals, []
    late = {0.0}
    if goals.deadline_h is not None:
        late |= {max(each.hours / goals.deadline_h - 1, 0.0) for each in choices}
    for each in choices:
        rent, own = each.rent_usd.get(gpu, 0.0), best.rent_usd.get(gpu, 0.0)
        if rent != own:
            found.append(1 + (best.usd - each.usd) / (rent - own))
        if rent and goals.budget_usd is not None:
            due = [goals.budget_usd * (1 + share) for share in late]
            found += [1 + (usd - each.usd) / rent for usd in due]
    return sorted({factor for factor in found if factor > 0})


def _move(gpu: str, choices: Sequence[Choice], asked: Asked) -> PriceMove:
    """The least changes, up and down, with which the choice is another."""
    best = _chosen(gpu, 1.0, choices, asked)
    turns = _turns(gpu, best, choices, asked)

    def first(factors: Iterable[float], beyond: float) -> tuple[float | None, Rival | None]:
        """The first turn at which another is chosen, and which."""
        for factor in factors:
            other = _chosen(gpu, factor * beyond, choices, asked)
            if other is not best:
                found = Rival(
                    summary=other.summary, gpus=other.gpus, usd=other.usd, hours=other.hours
                )
                return abs(factor - 1), found
        return None, None

    rise, dearer = first((factor for factor in turns if factor > 1 + NEAR), 1 + NEAR)
    fall, cheaper = first((factor for factor in reversed(turns) if factor < 1 - NEAR), 1 - NEAR)
    rival = cheaper or dearer
    return PriceMove(
        gpu=gpu,
        rise_fraction=rise,
        fall_fraction=fall,
        rise_rival=dearer,
        fall_rival=cheaper,
        rival=None if rival is None else rival.summary,
        rival_gpus=None if rival is None else rival.gpus,
        rival_usd=None if rival is None else rival.usd,
        rival_hours=None if rival is None else rival.hours,
    )
