"""Random pools of several GPU types: the search for pipelines beside the best step known.

python benchmarks/random_pools.py [FILE] [FIRST] [COUNT]    beside the steps of FILE (JSON)

A search by construction can be lucky on what it was tuned on. These pools come from a fixed seed;
FILE keeps for each the best step that any search has found, and is written where one is better.
Prints the ratio to it and CPU seconds of one core, then the worst and the mean ratio.
"""

import json
import random
import sys
import time
from pathlib import Path

import numpy as np

from astra.cost.stage_lines import StagePricer
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.stack import find_stack
from astra.model.zoo import find_model
from astra.search.evaluator import evaluator_of
from astra.search.objective import Fastest
from astra.search.pipeline.problem import MixedPipeline
from astra.search.query import query_of_space
from astra.strategy.plans import Task
from astra.strategy.space import Space, Workload

SEED = 20261118
POOLS = 50
TYPES = ("h100", "a100-80g", "h200", "l40s", "a100-40g", "h20", "b200", "l4")
MODELS = {
    "llama-3-8b": (8, 16, 32),
    "llama-2-13b": (8, 16, 64),
    "qwen2.5-32b": (16, 32, 64),
    "mixtral-8x7b": (16, 32, 64),
    "llama-3-70b": (64, 128, 256),
    "gpt-oss-120b": (32, 64, 128),
    "mixtral-8x22b": (64, 128),
    "llama-3.1-405b": (256, 512),
}
BEST = Path(__file__).parent / "random_pools.json"


def pools(count: int) -> list[tuple[str, str, int, int]]:
    """(model, pool, global batch, tokens of a sequence)"""
    dice, found = random.Random(SEED), []
    for _ in range(count):
        model = dice.choice(sorted(MODELS))
        types = dice.sample(TYPES, dice.choice((2, 2, 3, 3, 4)))
        gpus = ",".join(f"{name}:{dice.choice(MODELS[model])}" for name in types)
        found.append((model, gpus, dice.choice((64, 256, 1024)), dice.choice((4096, 4096, 8192))))
    return found


def space_of(model: str, gpus: str, batch: int, seq_len: int) -> Space:
    """FlagScale's pipelines."""
    pairs = [text.split(":") for text in gpus.split(",")]
    pool = tuple(Pool(gpu=find_gpu(name)[0], count=int(count)) for name, count in pairs)
    cluster = Cluster(name="random", pools=pool)
    stack = find_stack("megatron").full_name
    task = Task(model=find_model(model), cluster=cluster, runtime="flagscale", stack=stack)
    return Space(Workload(task, batch, seq_len))


def main() -> None:
    file = Path(sys.argv[1]) if sys.argv[1:] else BEST
    first, count = (int(text) for text in (*sys.argv[2:4], "0", str(POOLS))[:2])
    known = json.loads(file.read_text()) if file.exists() else {}
    ratios, spent = [], []
    for question in pools(first + count)[first:]:
        name = " ".join(str(part) for part in question)
        start, space = time.process_time(), space_of(*question)
        query = query_of_space(space, find_stack("megatron"))
        evaluator = evaluator_of(query, Fastest(1))
        problem = MixedPipeline(space, StagePricer(space.workload, query.stack, query.margin))
        problem.search(evaluator)
        spent.append(time.process_time() - start)
        step_s = evaluator.best_s
        bound_s = problem.least_s(step_s, evaluator.charge) if np.isfinite(step_s) else 0.0
        best_s = min(known.get(name) or np.inf, step_s)
        known[name] = best_s if np.isfinite(best_s) else None
        ratio = step_s / best_s if np.isfinite(best_s) else 1.0
        ratios.append(ratio)
        gap = step_s / bound_s - 1 if np.isfinite(step_s) and bound_s > 0 else np.nan
        print(f"{name:<78}{step_s:>10.4g} s{ratio:>9.5f}{gap:>7.0%}{spent[-1]:>7.2f} s", flush=True)
    print(f"worst {max(ratios):.5f}, mean {np.mean(ratios):.5f}", end=", ")
    print(f"CPU {sum(spent):.1f} s, at most {max(spent):.1f} s")
    file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
