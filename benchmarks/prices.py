"""A million plans through memory, time and bound, against one plan at a time. CPU seconds."""

import resource
import time

import numpy as np

from astra.cost.evaluate import evaluate
from astra.cost.price import price_plan
from astra.hardware.gpus_option import parse_gpus
from astra.hardware.stack import Stack, find_stack
from astra.model.zoo import find_model
from astra.strategy.plans import Plans, Task, plan_at
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space, Workload
from astra.strategy.variants import enumerate_plans
from astra.timing.layer import LayerCache

PLANS = 1_000_000
ALONE = 40


def timed(task: Task, stack: Stack) -> tuple[int, int, float, Plans]:
    """Plans, how many fit, CPU seconds of pricing, and the first table."""
    rows, fit, seconds = 0, 0, 0.0
    first = None
    cache = LayerCache()  # as in a search: a layer cut alike is priced once per question
    for table in enumerate_plans(Space(Workload(task, 1024, 2048))):
        if first is None:
            first = table
            evaluate(table, task, stack)  # tables of efficiencies are read once
        start = time.process_time()
        fit += int(evaluate(table, task, stack, cache=cache).fits.sum())
        seconds += time.process_time() - start
        rows += len(table)
        if rows >= PLANS:
            break
    assert first is not None
    return rows, fit, seconds, first


def main() -> None:
    stack = find_stack("megatron")
    print(f"{'model':<14}{'plans':>10}{'seconds':>9}{'per s':>12}{'fit':>9}{'ratio':>8}{'MB':>6}")
    for model, gpus in (
        ("llama-3-70b", "h100:512"),
        ("gpt3-175b", "a100:1024"),
        ("mixtral-8x7b", "h100:128"),
    ):
        cluster, _ = parse_gpus(gpus)
        task = Task(model=find_model(model), cluster=cluster)
        rows, fit, seconds, first = timed(task, stack)
        start = time.process_time()
        legal = np.flatnonzero(check(first, task, rules_for(task.runtime)).allowed)
        for row in legal[:: len(legal) // ALONE][:ALONE]:
            price_plan(plan_at(first, int(row), task))
        alone = (time.process_time() - start) / ALONE
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{model:<14}{rows:>10,}{seconds:>8.2f}s{rows / seconds:>12,.0f}{fit:>9,}"
            f"{alone / (seconds / rows):>7.0f}x{memory:>6.0f}"
        )
    print("CPU of one core; ratio: one plan priced and simulated against one row of a table")


if __name__ == "__main__":
    main()
