"""What a run recomputed where its row does not say, and only there."""

from tests.fit.test_runs import GOOD, table

from astra.cost.price import price_plan
from astra.fit.runs import Run, parse_runs

# 70 B parameters over 64 GPUs of 80 GB, all sharded: without recompute 8192 tokens do not fit.
LARGE = GOOD | {
    "model": "llama-3-70b",
    "num_layers": "80",
    "hidden_size": "8192",
    "num_gpus": "64",
    "framework": "torchtitan",
    "micro_batch": "1",
    "source_date": "2024-06",
}


def read(**csv_row: str) -> Run:
    (run,) = parse_runs(table(LARGE | csv_row), "mine.csv").runs
    return run


def recompute_of(run: Run) -> str:
    return run.plan.pipelines[0].segments[0].recompute


def may_fit(run: Run) -> bool:
    """Memory is predicted to 8 %: what is called full to 105 % fits one time in four."""
    return price_plan(run.plan).memory.fit_probability > 0.25


def test_a_run_that_ran_is_read_with_the_least_recompute_that_fits() -> None:
    run = read()
    assert recompute_of(run) != "none" and may_fit(run)
    assert any("the least with which the run fits" in said for said in run.assumed)
    assert not may_fit(read(recompute="none"))


def test_what_is_stated_stays_and_so_does_what_fits() -> None:
    stated = read(recompute="none")
    assert recompute_of(stated) == "none"
    small = read(model="llama-3-8b", num_layers="32", hidden_size="4096")
    assert recompute_of(small) == "none"
    assert "recompute not stated: none" in small.assumed
    assert not any("the least" in said for said in (*stated.assumed, *small.assumed))


def test_a_run_that_failed_for_memory_is_never_made_to_fit() -> None:
    failed = read(completeness="X", measured_step_time_s="")
    assert failed.failed_for_memory and recompute_of(failed) == "none"
    assert not price_plan(failed.plan).memory.fits


def test_a_heavier_load_is_read_with_no_less_recompute() -> None:
    """Longer sequences leave room for fewer whole layers."""
    found = []
    for tokens in ("4096", "8192", "16384"):
        name, _, count = recompute_of(read(seq_len=tokens)).partition(":block:")
        order = {"none": 0, "selective": 1, "full": 2, "full:uniform:1": 1000}
        found.append(order[name] + int(count or 0))
    assert found == sorted(found) and found[0] < found[-1]


def test_fms_fsdps_selective_is_a_share_of_blocks_that_its_table_leaves_open() -> None:
    csv_row = {"framework": "fms-fsdp", "recompute": "selective", "micro_batch": "2"}
    run = read(**csv_row)
    assert recompute_of(run).startswith("full:") and may_fit(run)
    other = read(**csv_row | {"framework": "torchtitan"})
    assert recompute_of(other) == "selective"
