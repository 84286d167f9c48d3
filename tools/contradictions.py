"""All predictions that contradict the hardware, of the GPUs that are known.

    python -m tools.contradictions

Writes `docs/reports/contradictions.md`.
"""

from pathlib import Path
from typing import Any

import astra
from astra.hardware.catalogue import find_gpu, gpu_names
from astra.hardware.stack import find_stack
from astra.strategy.plan import Plan
from astra.timing.contradictions import SAME_LINK_RATIO, Contradiction, contradictions

PAGE = Path(__file__).parents[1] / "docs" / "reports" / "contradictions.md"
STACKS = ("megatron", "nemo", "bridge", "torch-fsdp")
LEAST = {"kernels": 1.02}  # below it two tables of measured kernels just differ
LEAST_TRAFFIC = 1.1
# Plans whose kernels are compared: small and large layers, whole and in eight parts, and experts.
PLANS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama-3-8b", {"tp": 1}),
    ("llama-3-8b", {"tp": 8}),
    ("llama-3-70b", {"tp": 8, "pp": 4}),
    ("llama-3.1-405b", {"tp": 8, "pp": 8}),
    ("mixtral-8x7b", {"tp": 1, "ep": 8}),
    ("qwen3-235b-a22b", {"tp": 2, "ep": 8}),
)
WORK = {
    "kernels": "kernels",
    "tensor": "tensor-parallel traffic",
    "expert": "traffic between experts",
    "data": "traffic between replicas",
}
Key = tuple[str, str, str]  # work, slower, faster


def probes() -> dict[str, Plan]:
    """Plans by what they are called."""
    found = {}
    for model, settings in PLANS:
        for precision in ("bf16", "fp8"):
            said = " ".join(f"{name} {value}" for name, value in settings.items())
            found[f"{model} {said} {precision}"] = astra.predict(
                model,
                gpus="h100:64",
                global_batch=64,
                seq_len=4096,
                precision=precision,
                **settings,
            ).plan
    return found


def worst_by_pair(stack: str) -> dict[Key, tuple[Contradiction, str, int]]:
    """Of every pair and work the worst ratio, the plan that shows it, and how many do."""
    gpus = [find_gpu(name)[0] for name in gpu_names()]
    found: dict[Key, tuple[Contradiction, str, int]] = {}
    for name, plan in probes().items():
        for each in contradictions(plan, find_stack(stack), gpus, gpus):
            if each.ratio < LEAST.get(each.work, LEAST_TRAFFIC):
                continue
            key = each.work, each.slower, each.faster
            known, where, plans = found.get(key, (each, name, 0))
            worse, place = (each, name) if each.ratio > known.ratio else (known, where)
            found[key] = worse, place, plans + 1
    return found


def table(stack: str) -> list[str]:
    """A row for every GPU and work: than which others it is slower, and by how much."""
    rows: dict[tuple[str, str, bool], list[tuple[Contradiction, str]]] = {}
    for each, where, plans in worst_by_pair(stack).values():
        seen = f", {where}; {plans} of {2 * len(PLANS)}" if each.work == "kernels" else ""
        rows.setdefault((each.work, each.slower, each.same_link), []).append((each, seen))
    lines = [
        f"## {stack}",
        "",
        "| work | slower | although it has | than (times as long) |",
        "|---|---|---|---|",
    ]
    for (work, slower, same_link), found in sorted(rows.items()):
        why = "the same link" if same_link else "no less of anything"
        than = "; ".join(f"{each.faster} ({each.ratio:.2f}{seen})" for each, seen in found)
        lines.append(f"| {WORK[work]} | {slower} | {why} | {than} |")
    return [*lines, ""]


def page() -> str:
    """The report."""
    head = f"""# Predictions that contradict the hardware

Written by `python -m tools.contradictions`. Of two GPUs of one maker, one has no less of anything
(FLOP/s in the precision and in bf16, memory and its bandwidth, link, link domain, network, PCIe),
and yet the same kernels or the same exchange are predicted to take longer on it; or two GPUs have
the same link, and exchanges over it differ by more than {SAME_LINK_RATIO:g} times. Kernels are
those of {2 * len(PLANS)} plans of 64 GPUs, with the one that shows it most; traffic is
an exchange of 64 MiB among eight ranks side by side, or of 1 GiB between eight nodes, with the
stack's factors. Less than {LEAST["kernels"] - 1:.0%} for kernels and {LEAST_TRAFFIC - 1:.0%} for
traffic is not listed.

Nothing here is mended: the figures were fitted or borrowed apart from each other. An answer has a
note (`contradicts_hardware`) where one of them decides.
"""
    return "\n".join([head, *(line for stack in STACKS for line in table(stack))])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
