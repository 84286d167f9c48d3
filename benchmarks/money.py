"""The frontier of hours and dollars: CPU seconds of one core from process start, and memory."""

import resource
import subprocess
import sys

TYPES = ["h100", "h200", "b200", "b300", "a100-80g", "a100-40g", "l40s", "mi300x"]
TYPES += ["rtx-pro-6000-blackwell-se", "h100-nvl"]
QUESTIONS: tuple[tuple[str, str, int, dict[str, object]], ...] = (
    ("ten types, every cloud", ",".join(f"{name}:1024" for name in TYPES), 1024, {}),
    ("the same with spot", ",".join(f"{name}:1024" for name in TYPES), 1024, {"spot": True}),
    ("one type", "h100:4096", 1024, {}),
    ("one type, price given", "h100:4096", 1024, {"price": "h100=2.5"}),
    ("one type, batch 4,096", "h100:4096", 4096, {}),
    ("three types, mixed too", "h100:256,a100-80g:256,h200:256", 1024, {}),
)
SEARCH = """
import resource
import astra
found = astra.plan("llama-3-70b", gpus={gpus!r}, global_batch={batch}, seq_len=4096,
                   objective="frontier", tokens="1T", **{more!r})
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
best = found.best
print(len(found.market.machines), len(found.frontier), found.search.simulated, memory,
      f"{{best.usd:,.0f}} USD in {{best.hours:,.0f}} h on {{best.gpus}}", sep="\\t")
"""
TIMES = 3  # each is run, for the least of them


def main() -> None:
    print(f"{'llama-3-70b, 1T tokens':<26}{'CPU':>7}{'MB':>5}{'machines':>9}{'points':>7}  answer")
    for name, gpus, batch, more in QUESTIONS:
        command = [sys.executable, "-c", SEARCH.format(gpus=gpus, batch=batch, more=more)]
        spent, output = [], ""
        for _ in range(TIMES):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        machines, points, _, memory, best = output.strip().split("\t")
        print(f"{name:<26}{min(spent):>6.2f}s{float(memory):>5.0f}{machines:>9}{points:>7}  {best}")


if __name__ == "__main__":
    main()
