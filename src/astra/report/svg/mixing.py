"""What several GPU types bring together, beside what else could be run on them."""

from astra.report.comparison import RUNTIME_NAMES
from astra.report.gpus import short_name
from astra.report.priced_plan import seconds
from astra.report.svg.bars import Row, bars_svg
from astra.report.svg.priced import Document

TITLE = "A step together, and what else these GPUs could do"


def mixing_rows(document: Document) -> list[Row]:
    mixed, best = document["mixed"], document["plans"][0]
    others = {
        "the best uniform plan": mixed["uniform_step_s"],
        "all, layers split evenly": mixed["even_split_step_s"],
        **{f"{short_name(gpu)} alone": step_s for gpu, step_s in mixed["alone_step_s"].items()},
    }
    own = best["plan"]["runtime"]
    for runtime, step_s in (mixed.get("runtimes_step_s") or {}).items():
        if runtime != own:
            others[f"the best of {RUNTIME_NAMES.get(runtime, runtime)}"] = step_s
    rows = [Row("this plan", best["step_s"], seconds(best["step_s"]), strong=True)]
    for name, step_s in others.items():
        if step_s is not None:
            rows.append(Row(name, step_s, seconds(step_s)))
        elif name.endswith("alone"):
            rows.append(Row(name, None, "nothing fits"))
    return rows


def mixing_svg(document: Document, width: float) -> str:
    return bars_svg(mixing_rows(document), width, TITLE)
