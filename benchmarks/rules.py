"""A million plans through all rules, against one plan at a time. Prints CPU seconds and ratios."""

import time

import numpy as np

from astra.hardware.gpus_option import parse_gpus
from astra.model.zoo import find_model
from astra.strategy.plans import Plans, Task
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space, Workload
from astra.strategy.variants import enumerate_plans

PLANS = 1_000_000
ALONE = 300


def tables(workload: Workload) -> list[Plans]:
    """About a million plans of one question, in the chunks the search works with."""
    found, count = [], 0
    for table in enumerate_plans(Space(workload)):
        found.append(table)
        count += len(table)
        if count >= PLANS:
            break
    return found


def main() -> None:
    print(f"{'model':<14}{'runtime':<11}{'plans':>10}{'enumerate':>11}{'rules':>8}{'ratio':>8}")
    for model, gpus, runtime in (
        ("llama-3-70b", "h100:4096", "megatron"),
        ("mixtral-8x7b", "h100:512", "megatron"),
        ("gpt3-175b", "a100:1024", "megatron"),
    ):
        cluster, _ = parse_gpus(gpus)
        task = Task(model=find_model(model), cluster=cluster, runtime=runtime)  # type: ignore[arg-type]
        start = time.process_time()
        chunks = tables(Workload(task, 4096, 4096))
        made = time.process_time()
        rules = rules_for(task.runtime)
        for table in chunks:
            check(table, task, rules)
        judged = time.process_time()
        rows = sum(map(len, chunks))
        for row in np.linspace(0, len(chunks[0]) - 1, ALONE).astype(int):
            check(chunks[0].take([int(row)]), task, rules)
        alone = (time.process_time() - judged) / ALONE
        seconds = judged - made
        print(
            f"{model:<14}{runtime:<11}{rows:>10,}{made - start:>10.2f}s{seconds:>7.2f}s"
            f"{alone / (seconds / rows):>7.0f}x"
        )
    print("enumerate, rules: CPU seconds of one core; ratio: one plan at a time against columns")


if __name__ == "__main__":
    main()
