"""Random questions over several GPU types, and the same on other pools."""

import random
from dataclasses import dataclass, replace

import msgspec

import astra
from astra.api.answers import Answer
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.slowest import slowest_gpu
from astra.search.result import Result

TYPES = ("h100", "h200", "a100-80g", "a100-40g", "l40s", "b200", "gh200")
# Each is no better than the next in any figure.
BETTER = (("a100-40g", "a100-80g"), ("h100", "h200"), ("a100-80g", "h200"))
MODELS = ("llama-3.2-1b", "llama-3-8b", "llama-2-13b", "mixtral-8x7b", "gpt-oss-20b")


@dataclass(frozen=True)
class Question:
    """A model, a batch and so many GPUs of each type."""

    model: str
    pools: tuple[tuple[str, int], ...]
    global_batch: int
    seq_len: int

    def on(self, *pools: tuple[str, int]) -> "Question":
        return replace(self, pools=pools)

    def answer(self, runtime: str | None = None) -> Answer:
        return self.of_cluster(self.cluster(), runtime)

    def cluster(self) -> Cluster:
        """Pools of one GPU stay apart: the second has a name of its own."""
        pools = [(find_gpu(name)[0], count) for name, count in self.pools]
        twins = [
            (msgspec.structs.replace(gpu, name=f"{gpu.name}-{row}"), count)
            if gpu.name in {other.name for other, _ in pools[:row]}
            else (gpu, count)
            for row, (gpu, count) in enumerate(pools)
        ]
        return Cluster(
            name="mixed", pools=tuple(Pool(gpu=gpu, count=count) for gpu, count in twins)
        )

    def taken_for_the_slowest(self) -> Answer:
        """All GPUs as the type that is slowest, with no better memory or links than any has."""
        gpus: list[Gpu] = [find_gpu(name)[0] for name, _ in self.pools]
        slowest = max(gpus, key=lambda gpu: step_of(self._of_one(gpu)))
        return self._of_one(slowest_gpu(gpus, slowest))

    def _of_one(self, gpu: Gpu) -> Answer:
        total = sum(count for _, count in self.pools)
        return self.of_cluster(Cluster(name="one", pools=(Pool(gpu=gpu, count=total),)))

    def of_cluster(self, cluster: Cluster, runtime: str | None = None) -> Answer:
        """By the least step: the promises are about it."""
        return astra.plan(
            self.model,
            cluster=cluster,
            global_batch=self.global_batch,
            seq_len=self.seq_len,
            runtime=runtime,  # type: ignore[arg-type]
            top=1,
            risk="none",
        )


def random_question(seed: int) -> Question:
    dice = random.Random(seed)
    names = dice.sample(TYPES, dice.choice((2, 2, 2, 3)))
    pools = tuple((name, 8 * dice.choice((1, 2, 3, 4, 6, 8))) for name in names)
    return Question(
        model=dice.choice(MODELS),
        pools=pools,
        global_batch=dice.choice((48, 64, 96, 128, 240, 256)),
        seq_len=dice.choice((2048, 4096, 8192)),
    )


def step_of(answer: Answer | Result) -> float:
    return answer.best.step_s if answer.best else float("inf")
