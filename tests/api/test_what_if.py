"""A search asked again with something different: the answer's change, a line each."""

from typing import Any

import pytest
from tests.support.cases import each_case

import astra
from astra.cli.main import run

JOB: dict[str, Any] = {"gpus": {"h100": 16}, "global_batch": 64, "seq_len": 4096, "top": 1}


def test_each_change_is_the_whole_question_asked_again() -> None:
    wanted = ["network=x0.5", "gpus=+16xh100", "gpus=-8xh100", "memory.h100=x0.5,compute=x2"]
    answer = astra.plan("llama-3-8b", **JOB, what_if=wanted)
    assert [each.what for each in answer.what_if] == wanted
    slower, more, fewer, _ = answer.what_if
    assert slower.step_change_fraction is not None and slower.step_change_fraction >= 0
    for other, gpus in ((more, 32), (fewer, 8)):
        alone = astra.plan("llama-3-8b", **JOB | {"gpus": {"h100": gpus}}).best
        assert alone is not None and answer.best is not None and other.plan is not None
        assert other.plan.step_s == pytest.approx(alone.step_s)
        change = alone.step_s / answer.best.step_s - 1
        assert other.step_change_fraction == pytest.approx(change)


def test_gpus_of_another_type_are_joined_to_those_there_are() -> None:
    answer = astra.plan("llama-3-8b", **JOB, what_if="gpus=+8xh200", tp=8, pp=1)
    (other,) = answer.what_if
    assert other.plan is not None
    names = [pool.gpu.name for pool in other.plan.plan.cluster.pools]
    assert names == ["H100-80GB-SXM", "H200-SXM"]


def test_where_nothing_fits_then_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-3-8b --gpus h100:8 --global-batch 8 --seq-len 4096 --set tp=8 --what-if"
    assert run([*words.split(), "memory=x0.05", "--what-if", "link=x2"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "With memory=x0.05 no plan fits." in page and "With link=x2:" in page


@each_case(
    "text, why",
    [
        ("netwrk=x2", "Did you mean network"),
        ("network", "no change"),
        ("network=2", "is no change"),
        ("network=x0", "leaves 0 times"),
        ("network.a100-80g=x2", "not among the GPUs"),
        ("price.h100=-20%", "go with --objective money|objective='money'"),
        ("gpus=64", "is no change"),
        ("gpus=-64xh100", "there are 16"),
        ("gpus=-16xh100", "leaves no GPU"),
        ("gpus=+8xh1000", "h1000"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_searched(text: str, why: str) -> None:
    with pytest.raises(astra.InputError, match=why):
        astra.plan("llama-3-8b", **JOB, what_if=text)


def test_a_search_that_is_stopped_claims_nothing_of_what_it_did_not_search() -> None:
    stopped = astra.plan("llama-3-8b", **JOB, what_if=["link=x2"], is_cancelled=lambda: True)
    assert stopped.search.status == "cancelled" and stopped.what_if == ()
