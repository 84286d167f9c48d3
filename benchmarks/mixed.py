"""Searches over several GPU types: CPU seconds of one core, from process start, and the proof."""

import resource
import subprocess
import sys

POOLS = (
    ("llama-3-70b", "h100:256", 2048),
    ("llama-3-70b", "h100:256,a100-80g:256", 2048),
    ("llama-3-70b", "h100:256,a100-80g:256,h200:256", 2048),
    ("llama-3-70b", "h100:256,a100-80g:256,l40s:256", 2048),
    ("llama-3-70b", "h100:1024,a100-80g:1024,h200:1024", 2048),
    ("llama-3-70b", "h100:1024,a100-80g:1024,l40s:1024", 2048),
    ("llama-3-8b", "h100:64,a100-80g:64", 512),
)
SEARCH = """
import resource
import astra
found = astra.plan({model!r}, gpus={gpus!r}, global_batch={batch}, seq_len=4096)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
gap = found.mixed.gap_fraction if found.mixed else 0.0
best = found.best
print(found.search.simulated, gap, memory, best.step_s, best.summary, sep="\\t")
"""


def main() -> None:
    print(f"{'model':<12}{'GPUs':<36}{'CPU':>7}{'simulated':>10}{'gap':>7}{'MB':>5}  step, best")
    for model, gpus, batch in POOLS:
        script = SEARCH.format(model=model, gpus=gpus, batch=batch)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", script]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        simulated, gap, memory, step, best = output.strip().split("\t")
        print(
            f"{model:<12}{gpus:<36}{spent:>6.2f}s{simulated:>10}{float(gap):>7.2%}"
            f"{float(memory):>5.0f}  {float(step):.4g} s, {best}"
        )


if __name__ == "__main__":
    main()
