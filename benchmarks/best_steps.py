"""Best steps and frontiers against those that were found before: none may be lost.

python benchmarks/best_steps.py            all questions
python benchmarks/best_steps.py bs bm      those whose names begin so: bs one type, bx several
                                           types, bm money, r1 r2 r3 random ones of each
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

KNOWN = Path(__file__).parent / "best_steps.json"
WORSE = 1.004  # a step over the one that is known: what a search over several types may lose


def ratio_of(known: dict[str, Any], now: dict[str, Any]) -> float:
    """The step over the one that is known; of frontiers the worst, dollars at no later hours."""
    if "frontier" not in known:
        best = now["plans"][0]["step_s"] if now["plans"] else None
        if known["step_s"] is None or best is None:
            return 1.0 if known["step_s"] == best else float("inf")
        return float(best / known["step_s"])
    points = [(point["hours"], point["usd"]) for point in now["frontier"]]
    return max(
        (
            min((max(h / hours, d / usd) for h, d in points), default=float("inf"))
            for hours, usd in known["frontier"]
        ),
        default=1.0,
    )


def main() -> None:
    wanted = tuple(sys.argv[1:]) or ("",)
    questions = json.loads(KNOWN.read_text(encoding="utf-8"))["questions"]
    worst, total, before = 0.0, 0.0, 0.0
    for name, known in questions.items():
        if not name.startswith(wanted):
            continue
        words = [*known["command"].split(), "--risk", "none", "--json"]
        command = [sys.executable, "-m", "astra", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        answer = json.loads(process.stdout.read() or "null")
        used = os.wait4(process.pid, 0)[2]
        spent = used.ru_utime + used.ru_stime
        ratio = ratio_of(known, answer) if answer else float("inf")
        gap = (answer or {}).get("gap_fraction")
        worst, total, before = max(worst, ratio), total + spent, before + known["cpu_s"]
        mark = "WORSE " if ratio > WORSE else ""
        figures = f"{name:<9}{ratio:>9.4f}{spent:>8.1f}s{known['cpu_s']:>8.1f}s"
        figures += f"{used.ru_maxrss / 1024:>6.0f} MB" + ("" if gap is None else f" gap {gap:.1%}")
        print(f"{figures}  {mark}{known['command']}", flush=True)
    print(f"worst ratio {worst:.4f}; CPU {total:.0f} s, before {before:.0f} s")


if __name__ == "__main__":
    main()
