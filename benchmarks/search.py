"""Whole searches: candidates, CPU seconds, candidates per second, memory. CPU of one core."""

import resource
import subprocess
import sys
from collections.abc import Sequence

QUESTIONS = (
    ("llama-3-70b", "h100:512", 1024, 4096),
    ("llama-3-70b", "h100:4096", 4096, 4096),
    ("gpt3-175b", "a100:1024", 1536, 2048),
    ("mixtral-8x7b", "h100:64", 256, 4096),
    ("deepseek-v3", "h100:2048", 4096, 4096),
)
COMMAND = "plan llama-3-70b --gpus h100:512 --global-batch 1024 --seq-len 4096"
TIMES = 3  # the command is run, for the least of them
SEARCH = """
import resource, time
import astra
start = time.process_time()
found = astra.plan({model!r}, gpus={gpus!r}, global_batch={batch}, seq_len={seq_len})
seconds = time.process_time() - start
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
best = found.best.summary if found.best else "nothing fits"
print(found.search.candidates, found.search.simulated, seconds, memory, best, sep="\\t")
"""


def in_a_process(arguments: Sequence[str]) -> tuple[str, float]:
    """What a fresh Python prints, and its CPU seconds from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, seconds


def main() -> None:
    print(
        f"{'model':<13}{'GPUs':>10}{'candidates':>13}{'simulated':>10}{'seconds':>9}"
        f"{'per s':>12}{'MB':>5}{'process':>9}  best"
    )
    for model, gpus, batch, seq_len in QUESTIONS:
        script = SEARCH.format(model=model, gpus=gpus, batch=batch, seq_len=seq_len)
        output, process = in_a_process(["-c", script])
        candidates, simulated, spent, memory, best = output.strip().split("\t")
        count, seconds = int(candidates), float(spent)
        print(
            f"{model:<13}{gpus:>10}{count:>13,}{simulated:>10}{seconds:>8.2f}s"
            f"{count / seconds:>12,.0f}{float(memory):>5.0f}{process:>8.2f}s  {best}"
        )
    command = ["-m", "astra.cli.main", *COMMAND.split()]
    start = min(in_a_process(["-c", "import astra.cli.main, numpy"])[1] for _ in range(TIMES))
    whole = min(in_a_process(command)[1] for _ in range(TIMES))
    print(f"astra {COMMAND}: {whole:.2f} s from start to answer ({start:.2f} s of imports)")
    print("CPU of one core; seconds: the search alone; process: from its start to its end")


if __name__ == "__main__":
    main()
