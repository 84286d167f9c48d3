"""Bounds never exceed the simulated step, and come near it where stages are alike."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.simulate.random_pipelines import shapes
from tests.support.cases import each_case

from astra.simulate.pipeline_columns import Floats, Ints, PipelineColumns, step_s
from astra.timing.plan_bounds import pipeline_bound_s

Flags = NDArray[np.bool_]

SLOTS = 5


def unrolled(stages: Ints, column: Floats) -> Floats:
    """(..., slot, plan) per run of equal stages to (..., stage, plan), zeros in front.

    `stages` (slot, plan) counts the stages of each run; the last stage is in the last row.
    """
    depth = int(stages.sum(axis=0).max())
    ends = np.cumsum(stages, axis=0)
    place = np.arange(depth)[:, None] - (depth - ends[-1])  # (stage, plan), < 0: unused
    slot = (place[:, None] >= ends).sum(axis=1)  # (stage, plan)
    index = np.broadcast_to(slot, (*column.shape[:-2], *slot.shape))
    filled = np.take_along_axis(column, index, axis=-2)
    return np.where(place >= 0, filled, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Pipelines of one shape (p, v, m, g) as runs of equal stages."""

    stages: Ints  # (slot, plan)
    forward_s: Floats  # (chunk, slot, plan)
    backward_s: Floats  # (chunk, slot, plan)
    inner_s: Floats  # (slot, plan), of the faster way
    outer_s: Floats  # (slot, plan)
    wrap_s: Floats  # (plan,)
    back: Floats  # (plan,), how much slower the way back is
    first_gather_s: Floats  # (chunk, slot, plan)
    last_reduce_s: Floats  # (chunk, slot, plan)
    alike: Flags  # (plan,)
    shape: dict[str, int]

    def column(self, name: str) -> Ints:
        """(plan,) The same number for all."""
        return np.full(self.stages.shape[1], self.shape.get(name, 0))

    def pipes(self) -> PipelineColumns:
        """The same stages one by one, for the simulator."""
        depth = self.shape["stages"]
        inside = unrolled(self.stages, np.broadcast_to(self.inner_s, self.stages.shape))
        outside = unrolled(self.stages, self.outer_s)
        ends = np.cumsum(self.stages, axis=0)  # (slot, plan)
        last = (np.arange(1, depth + 1)[:, None, None] == ends).any(axis=1)
        link_s = np.where(last, outside, inside)
        link_s[-1] = self.wrap_s
        return PipelineColumns(
            stages=self.column("stages"),
            chunks=self.column("chunks"),
            micro_batches=self.column("micro_batches"),
            group=self.column("group"),
            extra_warmup=self.column("extra_warmup"),
            forward_s=unrolled(self.stages, self.forward_s),
            backward_s=unrolled(self.stages, self.backward_s),
            forward_link_s=link_s,
            backward_link_s=link_s * self.back,
            first_gather_s=unrolled(self.stages, self.first_gather_s),
            last_reduce_s=unrolled(self.stages, self.last_reduce_s),
        )

    def bound_s(self) -> Floats:
        mean, both_s = (1 + self.back) / 2, self.forward_s + self.backward_s
        links = mean * self.inner_s, mean * self.outer_s
        count = self.column("micro_batches")
        return pipeline_bound_s(self.stages, both_s[0], both_s.sum(axis=0), count, *links)


def random_runs(seed: int, plans: int, shape: dict[str, int]) -> Runs:
    """From alike to very uneven slots and chunks, no to slow links, with and without extras."""
    dice = np.random.default_rng(seed)
    spread = dice.choice([0.0, 0.1, 0.5, 1.0], plans)
    spread_chunks = spread * dice.choice([0.0, 0.3, 1.0], plans)
    link = dice.choice([0.0, 0.05, 0.3, 2.0], plans)

    def uneven(spread: Floats, *size: int) -> Floats:
        return np.exp(spread * dice.normal(size=(*size, plans)))

    size = (shape["chunks"], SLOTS)
    stage_s = uneven(spread, 1, SLOTS) * uneven(spread_chunks, *size)
    extra_s = dice.choice([0.0, 0.0, 0.5], plans)
    used = dice.random((plans, SLOTS)) ** dice.choice([0.2, 5.0], (plans, 1))
    return Runs(
        stages=dice.multinomial(shape["stages"], used / used.sum(axis=1, keepdims=True)).T,
        forward_s=stage_s * uneven(spread / 3, *size),
        backward_s=2 * stage_s * uneven(spread / 3, *size),
        inner_s=link * uneven(spread, SLOTS),
        outer_s=link * uneven(spread, SLOTS) * dice.choice([1.0, 5.0], plans),
        wrap_s=link * uneven(spread),
        back=dice.choice([1.0, 1.0, 1.5], plans),
        first_gather_s=extra_s * uneven(spread, *size),
        last_reduce_s=extra_s * uneven(spread, *size),
        alike=(spread <= 0.1) & (link <= 0.3),
        shape=shape,
    )


def random_shape(seed: int, chunks: int) -> dict[str, int]:
    """p 1 to 12, m 1 to 40 (interleaved: groups of at least p)."""
    dice = np.random.default_rng(seed)
    stages = int(dice.integers(1, 13))
    if chunks == 1:
        count = int(dice.integers(1, 41))
        return {"stages": stages, "chunks": 1, "micro_batches": count, "group": stages}
    group = stages + int(dice.choice([0, 0, 1, 4]))
    rest = int(dice.choice([0, *range(stages, group)]))
    whole = int(dice.integers(0 if rest else 1, max(1, (40 - rest) // group) + 1))
    return {
        "stages": stages,
        "chunks": chunks,
        "micro_batches": whole * group + rest,
        "group": group,
        "extra_warmup": int(dice.integers(0, 2)),
    }


def gaps(chunks: int, pipelines: int) -> tuple[Floats, Flags]:
    """How far below the simulated step the bounds lie, as fractions. Alike: stages within 10 %,
    links up to a third of a forward, five thirds between slots.
    """
    each = 50
    found: list[tuple[Floats, Flags]] = []
    for seed in range(pipelines // each):
        runs = random_runs(seed, each, random_shape(seed, chunks))
        found.append((1 - runs.bound_s() / step_s(runs.pipes()), runs.alike))
    gap, alike = zip(*found, strict=True)
    return np.concatenate(gap), np.concatenate(alike)


@pytest.mark.parametrize(
    ("chunks", "mean", "pipelines"),
    [(1, 0.1, 4_000), (2, 0.06, 2_000), (3, 0.06, 2_000), (4, 0.07, 2_000)],
)
def test_bounds_never_exceed_the_simulated_step_on_10_000_random_pipelines(
    chunks: int, mean: float, pipelines: int
) -> None:
    gap, alike = gaps(chunks, pipelines)
    assert gap.min() >= -1e-9
    assert gap[alike].mean() <= mean


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(shapes(), st.integers(0, 100_000))
def test_bounds_never_exceed_the_simulated_step(shape: dict[str, int], seed: int) -> None:
    runs = random_runs(seed, 5, shape)
    assert (runs.bound_s() <= step_s(runs.pipes()) * (1 + 1e-9)).all()


@each_case("micro_batches", [1, 3, 8, 50])
@each_case("chunks", [1, 2])
def test_equal_stages_without_links_are_bounded_by_their_exact_time(
    chunks: int, micro_batches: int
) -> None:
    """(m + p - 1) t and, in v chunks, (m v + p - 1) t / v: sec. 2.2 of arXiv 2104.04473."""
    stages, count = np.array([[5], [0], [3]]), np.array([micro_batches])
    stage_s, none = np.full((3, 1), 3.0), np.zeros((3, 1))
    bound_s = pipeline_bound_s(stages, stage_s / chunks, stage_s, count, none, none)
    assert bound_s == pytest.approx(3.0 * (chunks * micro_batches + 8 - 1) / chunks)


def test_three_stages_worked_out_by_hand_are_bounded_exactly() -> None:
    """t 3, 2 and 5, m 3: above the last stage 3 + 2, on it 3 x 5, so 20 s; and links of 1 s."""
    stages, count = np.ones((3, 1), np.int64), np.array([3])
    stage_s, none = np.array([[3.0], [2.0], [5.0]]), np.zeros((3, 1))
    assert pipeline_bound_s(stages, stage_s, stage_s, count, none, none) == [20.0]
    assert pipeline_bound_s(stages, stage_s, stage_s, count, none, none + 1) == [24.0]


@settings(max_examples=50, deadline=None)
@given(shapes(), st.integers(0, 100_000), st.integers(0, SLOTS))
def test_unused_slots_change_nothing(shape: dict[str, int], seed: int, at: int) -> None:
    runs = random_runs(seed, 4, shape)
    names = ["stages", "forward_s", "backward_s", "inner_s", "outer_s"]
    names += ["first_gather_s", "last_reduce_s"]
    wider = {name: np.insert(getattr(runs, name), at, 0, axis=-2) for name in names}
    wider["forward_s"][..., at, :] = 7.0
    wider["outer_s"][at] = 7.0
    assert np.allclose(runs.bound_s(), replace(runs, **wider).bound_s(), rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(shapes(), st.integers(0, 100_000))
def test_a_plan_has_the_same_bound_alone_as_in_a_table(shape: dict[str, int], seed: int) -> None:
    runs = random_runs(seed, 4, shape)
    names = [f.name for f in fields(runs) if f.name != "shape"]
    alone = replace(runs, **{name: getattr(runs, name)[..., [2]] for name in names})
    assert np.array_equal(runs.bound_s()[[2]], alone.bound_s())
