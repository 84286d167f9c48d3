"""A search that is stopped gives the best so far, and says how much faster any plan could be."""

import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.api.plans import query_of
from astra.cli.main import run
from astra.cli.stopping import StopRequest
from astra.errors import InputError
from astra.notes import NoteCode, has
from astra.report.answer import answer_page
from astra.search.evaluator import Limits
from astra.search.query import Query
from astra.search.solve import solve

JOB: dict[str, Any] = {"gpus": "h100:64", "global_batch": 256, "seq_len": 4096}


class After:
    """Is cancelled once it was asked so often."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.slow
def test_whenever_it_is_stopped_the_best_so_far_is_told_with_its_gap() -> None:
    whole = astra.plan("llama-3-70b", **JOB)
    assert whole.best is not None and whole.search.status == "proven"
    assert whole.search.gap_fraction == 0
    seen = set()
    for times in (0, 1, 2, 4, 6, 8, 12, 16, 24):
        answer = astra.plan("llama-3-70b", **JOB, is_cancelled=After(times))
        if answer.search.status == "proven":
            assert answer.best is not None and answer.best.step_s == whole.best.step_s
            continue
        assert answer.search.status == "cancelled"
        assert answer.request.note_codes[-1].code is NoteCode.STOPPED_EARLY
        seen.add(bool(answer.plans))
        if answer.best is not None:
            gap = answer.search.gap_fraction
            assert gap is not None and answer.best.step_s >= whole.best.step_s
            assert answer.best.step_s / (1 + gap) <= whole.best.step_s * (1 + 1e-9)
        else:
            assert answer.nothing_fits is not None
            assert has(answer.nothing_fits.reasons, NoteCode.NO_PLAN_YET)
    assert seen == {True, False}


@pytest.mark.slow
def test_a_frontier_that_is_stopped_has_the_points_found_so_far() -> None:
    money: dict[str, Any] = {"objective": "frontier", "tokens": "100B", "price": "h100=2"}
    whole = astra.plan("llama-3-8b", **JOB, **money)
    stopped = [
        astra.plan("llama-3-8b", **JOB, **money, is_cancelled=After(n)) for n in (10, 20, 30, 40)
    ]
    some = [a for a in stopped if a.search.status == "cancelled" and a.frontier]
    assert some
    for answer in some:
        for point in answer.frontier:  # nothing that the whole frontier does not dominate
            assert any(
                (p.hours or 0) <= (point.hours or 0) * (1 + 1e-9)
                and (p.usd or 0) <= (point.usd or 0) * (1 + 1e-9)
                for p in whole.frontier
            )


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [None, "any"])
def test_over_several_types_a_search_that_is_stopped_claims_no_proof(runtime: Any) -> None:
    """Nor that nothing fits a type, or that a runtime is slower, where it was not looked."""
    job: dict[str, Any] = {"gpus": "h100:8,a100-80g:8", "global_batch": 64, "seq_len": 4096}
    job["settings"] = ["tp=1,2", "mb=1", "cp=1"]
    whole = astra.plan("llama-3-8b", **job, runtime=runtime)
    assert whole.mixed is not None and whole.best
    stopped = [
        astra.plan("llama-3-8b", **job, runtime=runtime, is_cancelled=After(n))
        for n in (0, 8, 16, 24, 32)
    ]
    stopped = [answer for answer in stopped if answer.search.status == "cancelled"]
    assert {bool(answer.plans) for answer in stopped} == {True, False}
    for answer in stopped:
        mixed = answer.mixed
        assert mixed is not None and mixed.gap_fraction is None
        assert (
            None not in mixed.alone_step_s.values() and None not in mixed.runtimes_step_s.values()
        )
        page = " ".join(str(part) for part in answer_page(answer, None))
        assert "Proven" not in page and "nothing fits" not in page
        if answer.best is not None:
            assert answer.best.step_s >= whole.best.step_s * (1 - 1e-9)
            assert "nothing is proven" in page
        else:
            assert "No plan was found yet" in page and "no mixed plan fits" not in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        ("deepseek-v3", "h100:2048"),
        ("mixtral-8x22b", "h100:32,a100-80g:32"),
        pytest.param("mixtral-8x22b", "h100:64,a100-80g:64", marks=pytest.mark.soak),
        pytest.param("mixtral-8x22b", "h100:256,a100-80g:256", marks=pytest.mark.soak),
    ],
)
def test_a_large_search_looks_for_the_stop_at_least_twice_a_second(model: str, gpus: str) -> None:
    """The longest stretch beside the search of the first screen, which takes 0.4 CPU-s on a quiet
    machine: on a busy one both take longer.
    """
    gc.collect()
    gc.freeze()  # what other tests have left is not gone through while this one is timed
    first = time.process_time()
    solve(question("llama-3-70b", "h100:512", 1024), Limits())
    asked = [time.process_time()]

    def never() -> bool:
        asked.append(time.process_time())
        return False

    solve(question(model, gpus, 4096), Limits(is_cancelled=never))
    gc.unfreeze()
    between = [after - before for before, after in pairwise(asked)]
    assert max(between) < 0.5 / 0.4 * (asked[0] - first)


def question(model: str, gpus: str, global_batch: int) -> Query:
    return query_of(
        model, global_batch=global_batch, seq_len=4096, gpus=gpus, cluster=None,
        runtime=None, stack=None, precision="bf16", settings=(), rules=None, top=10, margin=0.05,
        risk="normal", max_gpus=None, use_all=False, objective=None, min_tokens_per_s=0.0,
        fold=True, exact=False, pipeline_model="simulated", more={},
    )  # fmt: skip


def test_a_time_limit_without_a_plan_is_an_answer_without_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "plan llama-3-70b --gpus h100:64 --global-batch 256 --seq-len 4096 --time-limit 0.001"
    assert run(words.split()) == 3
    assert "stopped before it found a plan" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(InputError, match="--time-limit"):
        run([*words.split()[:-1], "0"])
    with pytest.raises(InputError, match="time_limit"):
        astra.plan("llama-3-8b", **JOB, time_limit=-1)


def test_after_a_signal_the_answer_is_written_and_the_exit_code_is_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def soon() -> Iterator[StopRequest]:
        request = StopRequest()
        asked = After(16)
        monkeypatch.setattr(StopRequest, "__call__", lambda self: request.is_made or press(self))

        def press(self: StopRequest) -> bool:
            if asked():
                self.make(2, None)
            return self.is_made

        yield request

    monkeypatch.setattr("astra.cli.plan.stop_requests", soon)
    out = tmp_path / "result.json"
    words = "plan llama-3-70b --gpus h100:64 --global-batch 256 --seq-len 4096 --out"
    assert run([*words.split(), str(out)]) == 130
    assert json.loads(out.read_text())["search"]["status"] == "cancelled"


def test_a_second_signal_ends_at_once() -> None:
    request = StopRequest()
    request.make(2, None)
    assert request()
    with pytest.raises(KeyboardInterrupt):
        request.make(2, None)
