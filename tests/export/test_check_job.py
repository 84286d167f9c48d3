"""The script that compares a log with what was expected, on lines as each framework prints them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import astra
from astra.cost.price import price_plan
from astra.export import check_job
from astra.export.job_folder import expected
from astra.export.run_row import row_of
from astra.export.targets import export_files
from astra.fit.runs import parse_runs
from astra.hardware.gpus_option import parse_gpus
from astra.model.shape import Model, Moe, Window
from astra.model.zoo import find_model
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Plan, Runtime

EXPECTED: dict[str, Any] = {
    "gpus": 64,
    "tokens_per_step": 128 * 4096,
    "samples_logged": 128,
    "step_s": 2.0,
    "step_s_low": 1.8,
    "step_s_high": 2.2,
    "reserved_bytes": 60 * 2**30,
    "allocated_bytes": 55 * 2**30,
    "usable_bytes": 79 * 2**30,
    "usd_per_hour": 64 * 2.5,
    "row": {"row_id": "mine-1", "model": "llama-3-8b", "gpu_id": "H100-80GB-SXM"},
}
# As Megatron-LM's training_log and report_memory write them.
MEGATRON = "".join(
    f" [2026-08-14 09:21:0{step}.123456] iteration {step:8d}/     100 | consumed samples:"
    f" {128 * step:12d} | elapsed time per iteration (ms): {ms:.1f} | throughput per GPU"
    " (TFLOP/s/GPU): 412.3 | learning rate: 1.000000E-04 | global batch size:   128 | lm loss:"
    " 1.071234E+01 | loss scale: 1.0 | grad norm: 3.123 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |\n"
    for step, ms in enumerate([30112.4, 2900.0, 2001.2, 1998.7, 2003.9, 1999.5], 1)
) + (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 41234.5 | max allocated: 52345.6 |"
    " reserved: 58000.0 | max reserved: 59392.0\n"
)
# As torchtitan's MetricsProcessor.log writes them, with its colours.
TITAN = (
    "".join(
        f"[titan] 2026-08-14 09:21:0{step},123 - root - INFO - \x1b[31mstep: {step:2}  "
        f"\x1b[32mloss: {10.5:8.5f}  \x1b[38;5;208mgrad_norm: {1.2:7.4f}  "
        f"\x1b[36mmemory: {58.21:5.2f}GiB(73.60%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 310.12  "
        "\x1b[35mmfu: 31.35%\x1b[39m\n"
        for step, tps in enumerate([212, 3100, 4096, 4101, 4090, 4096], 1)
    )
    + "[titan] - root - INFO - validate step:  6  loss: 9.1  memory: 70.00GiB(88.00%)  tps: 9\n"
)
# As DeepSpeed's ThroughputTimer writes them.
ENGINE = "".join(
    f"[2026-08-14 09:21:0{step},123] [INFO] [timer.py:264:stop] epoch=0/micro_step={2 * step}/"
    f"global_step={step}, RunningAvgSamplesPerSec=60.1, CurrSamplesPerSec={rate}, "
    "MemAllocated=20.5GB, MaxMemAllocated=54.31GB\n"
    for step, rate in enumerate([4.2, 55.0, 64.02, 63.9, 64.0, 64.1], 1)
)
# As its PipelineEngine writes them.
PIPELINE = "".join(
    f"steps: {step} loss: 10.1234 iter time (s): {seconds:0.3f} samples/sec: {128 / seconds:0.3f}\n"
    for step, seconds in enumerate([9.0, 2.5, 2.01, 2.0, 1.99, 2.0], 1)
)
# As transformers' Trainer ends.
TRAINER = (
    "{'train_runtime': '201.3', 'train_samples_per_second': '63.6', "
    "'train_steps_per_second': '0.497', 'train_loss': '9.81', 'epoch': '1.0'}\n"
)


@pytest.mark.parametrize("log", [MEGATRON, TITAN, ENGINE, PIPELINE, TRAINER])
def test_steps_are_read_from_every_kind_of_log(log: str) -> None:
    found = check_job.read_log("starting\n" + log + "done\n", EXPECTED)
    assert found["step_s"] == pytest.approx(2.0, rel=0.01)  # the first steps are left out
    assert not found["out_of_memory"]
    lines, agree = check_job.report(found, EXPECTED)
    assert agree and "within" in lines[0]


def test_memory_is_read_where_a_log_tells_it() -> None:
    assert check_job.read_log(MEGATRON, EXPECTED)["reserved_bytes"] == 59392 * 2**20
    found = check_job.read_log(TITAN, EXPECTED)
    assert found["reserved_bytes"] == pytest.approx(58.21 * 2**30)  # not the validation's
    assert check_job.read_log(ENGINE, EXPECTED)["allocated_bytes"] == pytest.approx(54.31 * 2**30)
    assert check_job.read_log(PIPELINE, EXPECTED)["reserved_bytes"] is None


def test_a_slow_run_is_told_apart_and_a_row_for_calibrate_is_written() -> None:
    log = PIPELINE.replace("2.0", "3.0").replace("1.99", "3.01")
    found = check_job.read_log(log, EXPECTED)
    lines, agree = check_job.report(found, EXPECTED)
    assert not agree and "1.50 times" in lines[0]
    told = "\n".join(check_job.advice(found, EXPECTED))
    assert "astra calibrate runs.csv" in told
    assert "row_id,model,gpu_id,measured_step_time_s" in told
    assert "mine-1,llama-3-8b,H100-80GB-SXM,3" in told


def test_memory_above_the_expected_is_told_apart() -> None:
    log = MEGATRON.replace("max reserved: 59392.0", "max reserved: 75000.0")
    lines, agree = check_job.report(check_job.read_log(log, EXPECTED), EXPECTED)
    assert not agree and "73.2 GiB reserved" in lines[1]


def test_a_log_without_steps_and_one_of_a_crash_say_so() -> None:
    lines, agree = check_job.report(check_job.read_log("hello\n", EXPECTED), EXPECTED)
    assert not agree and "No step was found" in lines[0]
    crash = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    lines, agree = check_job.report(check_job.read_log(crash, EXPECTED), EXPECTED)
    assert not agree and "memory that ran out" in lines[0]


def made_folder(folder: Path) -> Plan:
    cluster, _ = parse_gpus("h100:8")
    plan = complete(
        PlanSettings(global_batch=64, seq_len=2048), find_model("llama-3-8b"), cluster
    ).plan
    for name, text in export_files(plan, "megatron").items():
        (folder / name).write_text(text, encoding="utf-8")
    return plan


def test_the_script_in_the_folder_runs_by_itself(tmp_path: Path) -> None:
    made_folder(tmp_path)
    numbers = json.loads((tmp_path / "expected.json").read_text())
    ms = numbers["step_s"] * 1000
    line = " iteration        {}/     100 | elapsed time per iteration (ms): {:.1f} |\n"
    (tmp_path / "job.log").write_text("".join(line.format(step, ms) for step in range(1, 7)))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(tmp_path / "check.py"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good = run(str(tmp_path / "job.log"))
    assert (good.returncode, good.stderr) == (0, "") and "As expected." in good.stdout
    (tmp_path / "slow.log").write_text("".join(line.format(s, 3 * ms) for s in range(1, 7)))
    slow = run(str(tmp_path / "slow.log"))
    assert slow.returncode == 1 and "astra calibrate" in slow.stdout
    assert run().returncode == 2 and "usage" in run().stderr
    missing = run(str(tmp_path / "none.log"))
    assert missing.returncode == 2 and "cannot be read" in missing.stderr


# Models that no zoo knows: their rows have to say it all.
OWN = Model(
    name="mine", layers=12, hidden=3072, heads=24, kv_heads=8, head_dim=128, ffn=8192, vocab=64000
)
OWN_MOE = replace(OWN, tied_embeddings=True, ffn=0, moe=Moe(experts=16, top_k=4, moe_ffn=2048))


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        ("megatron", {"tp": 2, "pp": 2, "vpp": 2, "recompute": "full:uniform:1"}),
        ("megatron", {"tp": 2, "pp": 2, "recompute": "full:block:4", "overlap_tp": False}),
        ("megatron", {"tp": 2, "recompute": "selective:layernorm+mlp", "shard_group": 4}),
        ("megatron", {"model": OWN, "tp": 2, "micro_batch": 2}),
        ("megatron", {"model": OWN_MOE, "ep": 8, "overlap_grad_reduce": False}),
        ("megatron", {"model": "deepseek-v2-lite", "ep": 8, "tp": 2, "recompute": "full"}),
        ("megatron", {"model": "qwen2.5-7b", "precision": "fp8", "fp8_recipe": "tensorwise"}),
        ("megatron", {"model": "mixtral-8x7b", "ep": 8, "precision": "bf16"}),
        ("fsdp", {"micro_batch": 2}),
        ("deepspeed", {"sharding": "gradients"}),
    ],
)
def test_the_row_it_writes_is_read_by_calibrate_as_this_plan(
    runtime: Runtime, said: dict[str, Any]
) -> None:
    cluster, _ = parse_gpus("h100:16")
    model = said.pop("model", "llama-3-8b")
    model = find_model(model) if isinstance(model, str) else model
    plan = complete(
        PlanSettings(global_batch=64, seq_len=2048, **said), model, cluster, runtime
    ).plan
    numbers = expected(price_plan(plan))
    row = {**numbers["row"], "measured_step_time_s": "2.5"}
    text = ",".join(row) + "\n" + ",".join(str(value) for value in row.values()) + "\n"
    found = parse_runs(text, "runs.csv")
    (run,) = found.runs
    assert run.measured_step_s == 2.5
    names = ("pp", "dp", "vpp", "cp", "ep", "micro_batch", "global_batch", "seq_len", "sharding")
    for name in (*names, "sequence_parallel", "precision"):
        assert getattr(run.plan, name) == getattr(plan, name), name
    own, read = plan.pipelines[0].segments[0], run.plan.pipelines[0].segments[0]
    assert (read.tp, read.gpu, read.recompute) == (own.tp, own.gpu, own.recompute)
    wanted = price_plan(replace(plan, stack=run.plan.stack))
    assert price_plan(run.plan).step_s == pytest.approx(wanted.step_s, rel=0.01)


def test_a_mixed_job_gets_other_advice() -> None:
    mixed = {"row": None, "row_lacks": ["GPUs of several types"]}
    told = check_job.advice({"step_s": 3.0}, EXPECTED | mixed)
    assert "each type alone" in told[-1]


def test_no_row_is_offered_that_calibrate_would_read_as_another_job() -> None:
    """A table of runs has no column for windows: read back, long attention would be full."""
    cluster, _ = parse_gpus("h100:16")
    windowed = replace(OWN, window=Window(tokens=512))
    wish = PlanSettings(global_batch=64, seq_len=32768, tp=8)
    numbers = expected(price_plan(complete(wish, windowed, cluster).plan))
    assert numbers["row"] is None
    assert numbers["row_lacks"] == ("attention windows",)
    told = "\n".join(check_job.advice({"step_s": 3.0}, EXPECTED | numbers))
    assert "attention windows" in told and "measured_step_time_s" not in told
    short = PlanSettings(global_batch=64, seq_len=512, tp=8)  # the window holds it all
    kept = expected(price_plan(complete(short, windowed, cluster).plan))
    assert kept["row"] is not None
    told = "\n".join(check_job.advice({"step_s": 3.0}, EXPECTED | kept))
    assert "changes little: attention windows" in told and "measured_step_time_s" in told


def test_a_row_says_the_least_micro_batch_group_and_no_other() -> None:
    """Five stages, 16 micro-batches: in groups of eight, as it is read back; of 16 none."""
    job: dict[str, Any] = {"gpus": "h100:40", "global_batch": 64, "seq_len": 4096, "tp": 2}
    job["layers_per_stage"] = [16] * 5
    grouped, plain = (astra.predict("llama-3-70b", **job, vpp=vpp) for vpp in (2, 1))
    assert (
        grouped.plan.explicit_microbatch_group == 8 and plain.plan.explicit_microbatch_group is None
    )
    assert row_of(grouped)[0] is not None and row_of(plain)[0] is not None
    larger = astra.predict("llama-3-70b", **job, vpp=2, microbatch_group=16)
    assert row_of(larger) == (None, ("micro-batches in turn on a chunk",))
