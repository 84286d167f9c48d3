"""Searches over several GPU types: CPU seconds of one core, from process start, and the proof.

python benchmarks/mixed.py            the pools that are asked about
python benchmarks/mixed.py growth     how cost grows with types, GPUs and layers
"""

import resource
import subprocess
import sys

TYPES = ("h100", "a100-80g", "h200", "l40s", "a100-40g")
ONE = "mesh_dp=false"  # one dp for all stages
MEGATRON = "runtime=megatron"  # one cut for all stages, interleaved or not
JOBS = (
    ("llama-3-70b", 1, 256, ""),
    ("llama-3-70b", 2, 256, ONE),
    ("llama-3-70b", 3, 256, ONE),
    ("llama-3-70b", 3, 1024, ONE),
    ("llama-3-70b", 5, 1024, ONE),
    ("llama-3-70b", 2, 256, ""),
    ("llama-3-70b", 3, 256, ""),
    ("llama-3-70b", 3, 1024, ""),
    ("llama-3-70b", 5, 1024, ""),
    ("llama-3.1-405b", 3, 1024, ""),
    ("mixtral-8x22b", 2, 256, ""),
    ("gpt-oss-120b", 2, 256, ""),
    ("qwen3-235b-a22b", 2, 256, ""),
    ("deepseek-v3", 2, 256, ""),
    ("llama-3-70b", 2, 256, MEGATRON),
    ("llama-3-70b", 3, 256, MEGATRON),
    ("llama-3-70b", 3, 1024, MEGATRON),
    ("llama-3-70b", 5, 1024, MEGATRON),
    ("llama-3.1-405b", 3, 1024, MEGATRON),
    ("mixtral-8x22b", 2, 256, MEGATRON),
    ("gpt-oss-120b", 2, 256, MEGATRON),
    ("qwen3-235b-a22b", 2, 256, MEGATRON),
    ("deepseek-v3", 2, 256, MEGATRON),
)
GROWTH = (
    *(("llama-3-70b", types, 256, "") for types in (1, 2, 3, 4, 5)),
    *(("llama-3-70b", 3, gpus, "") for gpus in (64, 256, 1024, 4096)),
    *((model, 3, 256, "") for model in ("llama-3-8b", "llama-3-70b", "llama-3.1-405b")),
)
SEARCH = """
import resource
import astra
question = dict(global_batch=2048, seq_len=4096, runtime={runtime!r}, settings={settings!r})
found = astra.plan({model!r}, gpus={gpus!r}, **question)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
gap = found.mixed.gap_fraction if found.mixed else 0.0
best = found.best
name = best.summary + " (" + best.plan.runtime + ")"
print(found.search.simulated, gap, memory, best.step_s, name, sep="\\t")
"""


def seconds(model: str, types: int, gpus: int, setting: str) -> float:
    """Runs one search in a process of its own, prints a line, and says what it took."""
    pool = ",".join(f"{name}:{gpus}" for name in TYPES[:types])
    runtime = "megatron" if setting == MEGATRON else None
    settings = [setting] if setting and setting != MEGATRON else []
    script = SEARCH.format(model=model, gpus=pool, settings=settings, runtime=runtime)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    simulated, gap, memory, step, best = output.strip().split("\t")
    print(
        f"{model:<17}{types} x {gpus:<6}{setting or 'every runtime':<17}{spent:>6.2f}s"
        f"{simulated:>10}{float(gap):>8.2%}{float(memory):>6.0f}  {float(step):.4g} s, {best}",
        flush=True,
    )
    return spent


def main() -> None:
    jobs = GROWTH if sys.argv[1:] == ["growth"] else JOBS
    print(
        f"{'model':<17}{'pool':<10}{'dp':<17}{'CPU':>7}{'simulated':>10}{'gap':>8}{'MB':>6}  best"
    )
    spent = {job: seconds(*job) for job in jobs}
    one, three = (spent.get(("llama-3-70b", types, 256, "")) for types in (1, 3))
    if one and three:
        print(f"three types of 256 over one: {three / one:.1f} x")


if __name__ == "__main__":
    main()
