"""The pipeline layout string against a reader of its own, written from the grammar."""

from itertools import groupby

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategy.mixed_plans import mixed_plan
from tests.support.cases import each_case
from tests.support.random_plans import random_plan

from astra.export.pipeline_layout import is_even_split, layers_of_chunks, pipeline_layout_text
from astra.model.zoo import find_model
from astra.strategy.plan import Pipeline, Plan, Segment

MODELS = ("llama-3-8b", "llama-3.1-405b", "deepseek-v3", "mixtral-8x7b", "gpt2-xl")


class Reader:
    """layout := part*;  part := (letter | '|' | '(' layout ')') ['*' number]"""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def read(self, inside: bool = False) -> str:
        """The layout without repeats: every letter and bar written out."""
        found = ""
        while self.at < len(self.text) and self.text[self.at] != ")":
            found += self.part()
        assert (self.at < len(self.text)) == inside, "brackets do not match"
        return found

    def part(self) -> str:
        sign = self.text[self.at]
        self.at += 1
        if sign == "(":
            body = self.read(inside=True)
            self.at += 1
        else:
            assert sign in "EtmL|", sign
            body = sign
        if self.at < len(self.text) and self.text[self.at] == "*":
            self.at += 1
            start = self.at
            while self.at < len(self.text) and self.text[self.at].isdigit():
                self.at += 1
            return body * int(self.text[start : self.at])
        return body


def stages_of(text: str) -> list[str]:
    return Reader(text).read().split("|")


def plan_with(chunks: tuple[int, ...], pp: int, mtp_layers: int = 0) -> Plan:
    """A plan whose virtual stages hold these layers."""
    base = random_plan(0, find_model("llama-3-8b"), ("h100",))
    stages = tuple(sum(chunks[stage::pp]) for stage in range(pp))
    segment = Segment(gpu="H100-80GB-SXM", stages=pp, layers=stages, tp=1)
    pipeline = Pipeline(replicas=1, micro_batches=8, segments=(segment,))
    vpp = len(chunks) // pp
    return msgspec.structs.replace(
        base, pipelines=(pipeline,), chunk_layers=chunks, vpp=vpp, mtp_layers=mtp_layers
    )


def assert_layout_says(plan: Plan, chunks: tuple[int, ...]) -> None:
    stages = stages_of(pipeline_layout_text(plan))
    assert [stage.count("t") for stage in stages] == list(chunks)
    assert "".join(stages).count("E") == 1 and stages[0].startswith("E")
    assert "".join(stages).count("L") == 1 and stages[-1].endswith("L")
    assert stages[-1].count("m") == "".join(stages).count("m") == plan.mtp_layers
    for stage in stages:  # the order inside a stage: embedding, layers, prediction, loss
        letters = [letter for letter, _ in groupby(stage)]
        assert letters == [letter for letter in "EtmL" if letter in stage]


@st.composite
def chunkings(draw: st.DrawFn) -> tuple[tuple[int, ...], int]:
    pp, vpp = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    few = st.integers(0, 3) | st.just(7) | st.just(12)
    runs = draw(st.lists(st.tuples(few, st.integers(1, 12)), min_size=1))
    flat = [layers for layers, count in runs for _ in range(count)]
    chunks = (flat * (pp * vpp))[: pp * vpp]
    return tuple(chunks), pp


@pytest.mark.slow
@given(chunkings(), st.integers(0, 4))
@settings(max_examples=300, deadline=None)
def test_any_chunks_can_be_read_back_from_the_layout(
    cut: tuple[tuple[int, ...], int], mtp_layers: int
) -> None:
    chunks, pp = cut
    assert_layout_says(plan_with(chunks, pp, mtp_layers), chunks)


@given(st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_the_layout_of_a_random_plan_holds_its_layers(seed: int) -> None:
    plan = random_plan(seed, find_model(MODELS[seed % len(MODELS)]), ("h100",))
    chunks = layers_of_chunks(plan)
    assert_layout_says(plan, chunks)
    for stage, layers in enumerate(plan.pipelines[0].layers):
        assert sum(chunks[stage :: plan.pp]) == layers


@given(st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_chunks_are_virtual_stage_major_and_lose_no_layer(seed: int) -> None:
    plan = mixed_plan(seed)
    chunks = layers_of_chunks(plan)
    assert len(chunks) == plan.pp * plan.vpp
    assert tuple(sum(chunks[k :: plan.pp]) for k in range(plan.pp)) == plan.pipelines[0].layers


@each_case(
    "chunks, pp, mtp, text",
    [
        ((32,), 1, 0, "Et*32L"),
        ((1, 2), 2, 0, "Et|ttL"),
        ((7, 8, 8, 8, 1), 5, 0, "Et*7|(t*8|)*3tL"),
        ((3, 4, 4, 3), 2, 1, "Et*3|t*4|t*4|t*3mL"),
        ((0, 5, 5, 0), 4, 2, "E|t*5|t*5|mmL"),
        ((2, 0, 0, 0, 2), 5, 0, "Ett||||ttL"),
        ((4, 4, 4, 4), 4, 3, "Et*4|t*4|t*4|t*4m*3L"),
    ],
)
def test_layouts_by_hand(chunks: tuple[int, ...], pp: int, mtp: int, text: str) -> None:
    assert pipeline_layout_text(plan_with(chunks, pp, mtp)) == text
    assert [stage.count("t") for stage in stages_of(text)] == list(chunks)


def test_a_split_is_even_only_where_every_chunk_is_alike_and_holds_the_model() -> None:
    assert is_even_split(plan_with((8, 8, 8, 8), 4))
    assert is_even_split(plan_with((8, 8, 8, 8), 2))
    assert not is_even_split(plan_with((7, 9, 8, 8), 4))
    assert not is_even_split(plan_with((9, 9, 9, 9), 4))
