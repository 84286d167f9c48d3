"""Steps out of printed rates, against steps that the same sources imply."""

import pytest
from tests.support.published import published_runs

from astra.fit.csv_row import CsvRow
from astra.fit.rates import step_of

GPT = {"global_batch": "192", "seq_len": "4096", "num_layers": "24", "hidden_size": "2048",
       "vocab_size": "131072", "num_gpus": "48"}  # fmt: skip
SC21 = "Megatron SC21-style model FLOPs without recompute, full S^2 attention"


def test_a_printed_step_is_taken_as_it_is() -> None:
    row = GPT | {"measured_step_time_s": "0.5", "measured_tflops_per_gpu": "1"}
    assert step_of(CsvRow(row)) == (0.5, None)


def test_tflops_count_only_with_the_formula_they_were_counted_by() -> None:
    row = GPT | {"measured_tflops_per_gpu": "408.8"}
    assert step_of(CsvRow(row)) == (None, None)
    step_s, said = step_of(CsvRow(row | {"causal_flop_convention": SC21}))
    assert step_s == pytest.approx(0.45, abs=0.005) and said
    del row["vocab_size"]
    assert step_of(CsvRow(row | {"causal_flop_convention": SC21})) == (None, None)


# What the notes of these rows say that the printed table implies.
IMPLIED = {"02775": 0.45, "02776": 0.80, "02777": 0.85, "02778": 0.89, "02780": 3.65,
           "02783": 12.72}  # fmt: skip


@pytest.mark.slow
def test_megatrons_own_table_implies_these_steps() -> None:
    runs = {run.row_id: run for run in published_runs().runs if run.family == "megatron-readme"}
    for number, implied_s in IMPLIED.items():
        run = runs[f"megatron-readme-{number}"]
        assert run.measured_step_s == pytest.approx(implied_s, rel=0.012), number
        assert run.plan.sequence_parallel == (run.plan.pipelines[0].segments[0].tp > 1)
        assert (run.plan.vpp > 1) == (run.plan.pp > 1), "its text says that transfers are hidden"


@pytest.mark.slow
def test_alpas_rates_count_the_forward_pass_that_is_repeated() -> None:
    """96 b s l h^2 (1 + s / 6h + V / 16 l h), as its artifact computes it."""
    runs = {run.row_id: run for run in published_runs().runs if run.family == "alpa-osdi22"}
    step_s = runs["alpa-osdi22-03285"].measured_step_s
    batch, seq, layers, hidden, vocab = 128, 1024, 24, 1024, 51_200
    layer = 24 * batch * seq * hidden**2 * (1 + seq / (6 * hidden))
    flops = 4 * layers * layer + 6 * batch * seq * hidden * vocab
    assert step_s == pytest.approx(flops / 47.53e12)
