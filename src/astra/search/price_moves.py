"""How far a price must move for the answer to change."""

from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from typing import Any

import msgspec

from astra.errors import InputError
from astra.files import convert
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.stack import find_stack
from astra.money.wish import Goals, goals_of, wish_of
from astra.search.answer import Wanted
from astra.search.explained import PriceMove, Say
from astra.search.market_answer import Asked, Scene, chosen_row, points_of, scene_of, searched
from astra.search.priced import Priced
from astra.strategy.own_rules import read_own_rules
from astra.strategy.plan import Plan
from astra.strategy.plans import Task
from astra.strategy.space import Question, Space, parse_set


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a result keeps of the question about money that it answers."""

    gpus: dict[str, int]
    global_batch: int
    seq_len: int
    runtime: str
    stack: str
    precision: str
    memory_margin: float
    money: dict[str, Any]
    max_gpus: int | None = None
    set: tuple[str, ...] = ()
    rules: str | None = None
    top: int = 10


def asked_again(request: Mapping[str, object], plan: Plan, where: str) -> Asked:
    """The question of a result once more; its model and its own GPUs are in its plans."""
    from pathlib import Path

    said = convert(dict(request), Request, f"{where}: request")
    own = {pool.gpu.name: pool.gpu for pool in plan.cluster.pools if pool.gpu.source.kind == "user"}
    pools = tuple(
        Pool(gpu=own.get(name) or find_gpu(name)[0], count=count)
        for name, count in said.gpus.items()
    )
    cluster = Cluster(name="asked", pools=pools, max_gpus=said.max_gpus)
    task = Task(model=plan.model, cluster=cluster, runtime=plan.runtime, stack=said.stack)
    question = Question(task, said.global_batch, said.seq_len, plan.mtp_layers, said.precision)
    rules = read_own_rules(Path(said.rules), task) if said.rules else ()
    wish = wish_of(said.money)
    wanted = Wanted(
        space=Space(question, parse_set(said.set)),
        stack=find_stack(said.stack),
        own_rules=rules,
        top=said.top,
        margin=said.memory_margin,
    )
    return Asked(wanted=wanted, wish=wish, goals=goals_of(wish))


def price_moves(asked: Asked, say: Say) -> tuple[PriceMove, ...]:
    """For every GPU type: the least change of its prices alone with which another plan is chosen.

    Prices of a type scale all its dollars alike, so its own frontier keeps its shape, and the
    change at which a point of it enters or leaves is where it costs just as much.
    """
    asked = changed(asked, wish=msgspec.structs.replace(asked.wish, mixed=False))
    scene = scene_of(asked)
    names = [pool.gpu.name for pool in asked.wanted.space.question.task.cluster.pools]
    own: dict[str, list[Priced]] = {}
    for name in names:
        say(f"what {name} alone could do")
        alone = _only(scene, name)
        found, _ = searched(asked, alone)
        own[name] = points_of(asked, alone, found)
    points = sorted(
        (point for each in own.values() for point in each), key=lambda p: (p.hours, p.usd)
    )
    if not points:
        raise InputError("no plan fits, so no price can change the answer.")
    front = _frontier(points)
    row, _ = chosen_row(front, asked.goals, asked.tokens)
    best = front[row]
    return tuple(_move(name, own, best, asked.goals) for name in names)


def _only(scene: Scene, name: str) -> Scene:
    """The market without any other type."""
    space = scene.wanted.space
    question = space.question
    pools = tuple(pool for pool in question.task.cluster.pools if pool.gpu.name == name)
    cluster = msgspec.structs.replace(question.task.cluster, pools=pools)
    task = msgspec.structs.replace(question.task, cluster=cluster)
    smaller = Space(changed(question, task=task), space.chosen)
    return changed(scene, wanted=changed(scene.wanted, space=smaller))


def _frontier(points: Sequence[Priced]) -> list[Priced]:
    best: list[Priced] = []
    for point in points:
        assert point.usd is not None
        if not best or point.usd < (best[-1].usd or 0.0):
            best.append(point)
    return best


def _move(name: str, own: Mapping[str, Sequence[Priced]], best: Priced, goals: Goals) -> PriceMove:
    """The changes, up and down, at which the choice is another."""
    (chosen,) = best.gpus
    others = [point for key, points in own.items() if key != name for point in points]
    rise = fall = None
    rival: Priced | None = None
    assert best.usd is not None and best.hours is not None
    if goals.order == "cost":
        if name == chosen:
            rival = _cheapest(others, goals)
            if rival is not None and rival.usd is not None:
                rise = _factor(rival.usd, best)
        else:
            rival = _cheapest(own[name], goals)
            if rival is not None:
                fall = _factor(best.usd, rival)
    elif goals.budget_usd is not None:
        if name == chosen:
            rise = _factor(goals.budget_usd, best)
        faster = [p for p in own[name] if p.hours is not None and p.hours < best.hours]
        falls = [(_factor(goals.budget_usd, point), point) for point in faster]
        falls = [(factor, point) for factor, point in falls if 0 < factor < 1]
        if falls:
            fall, rival = max(falls, key=lambda pair: pair[0])
    return PriceMove(
        gpu=name,
        rise_fraction=None if rise is None else rise - 1,
        fall_fraction=None if fall is None or fall <= 0 else 1 - fall,
        rival=None if rival is None else rival.summary,
        rival_gpus=None if rival is None else rival.gpus,
        rival_usd=None if rival is None else rival.usd,
        rival_hours=None if rival is None else rival.hours,
    )


def _cheapest(points: Sequence[Priced], goals: Goals) -> Priced | None:
    late = goals.deadline_h
    some = [p for p in points if late is None or (p.hours is not None and p.hours <= late)]
    return min(some, key=lambda p: p.usd or 0.0, default=None)


def _factor(goal_usd: float, point: Priced) -> float:
    """What the rent must be multiplied with for a plan to cost this much."""
    assert point.money is not None
    rest = point.money.storage_usd + point.money.egress_usd
    return (goal_usd - rest) / point.money.rent_usd if point.money.rent_usd else float("inf")
