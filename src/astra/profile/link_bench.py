"""Collectives between the processes of torchrun, alone and beside products.

All groups of a size run at the same time, as they do in training; the time is that of the
slowest rank. Every process goes through the same list in the same order: what one decides
(how often, whether to go on) all decide alike, over a group of its own.
"""

import math
from collections.abc import Callable
from datetime import timedelta
from statistics import median, quantiles
from typing import Any

from astra.profile.bench import Bench
from astra.profile.measurement import Measurement
from astra.profile.timer import LAP_S, TIMED_S, WARM_S, GpuTimer, HostTimer

Start = Callable[[], Any]  # begins a collective, gives what to wait for

COLLECTIVE_TIMEOUT = timedelta(minutes=2)
GEMM_SIDE = {"cuda": 4096, "cpu": 128}


def members(world: int, ranks: int, step: int) -> list[list[int]]:
    """The groups of `ranks` processes, `step` apart, that share out the world.

    >>> members(8, 2, 4)
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    return [
        [base + first + step * place for place in range(ranks)]
        for base in range(0, world, ranks * step)
        for first in range(step)
    ]


class LinkBench:
    """The processes of one torchrun."""

    def __init__(self, torch: Any, device: str, local_rank: int) -> None:
        import torch.distributed as dist

        if device == "cuda":
            torch.cuda.set_device(local_rank)
        self.dist, self.torch, self.device = dist, torch, device
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=COLLECTIVE_TIMEOUT)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        self.timer = GpuTimer(torch) if device == "cuda" else HostTimer()
        self.bench = Bench(torch, device)
        self.groups: dict[tuple[int, int], Any] = {}

    def close(self) -> None:
        self.dist.destroy_process_group()

    def agree(self, value: Any) -> Any:
        """What the first process says, everywhere."""
        box = [value]
        self.dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def max_over_ranks(self, value: float) -> float:
        """The largest value of all processes."""
        box = self.torch.tensor([value], dtype=self.torch.float64)
        self.dist.all_reduce(box, op=self.dist.ReduceOp.MAX, group=self.control)
        return float(box.item())

    def group(self, ranks: int, step: int) -> Any:
        """This process's group; all processes make all groups, in one order."""
        if (ranks, step) not in self.groups:
            for inside in members(self.world, ranks, step):
                made = self.dist.new_group(inside, timeout=COLLECTIVE_TIMEOUT)
                if self.rank in inside:
                    self.groups[ranks, step] = made, inside
        return self.groups[ranks, step]

    def measure(self, one: Measurement) -> dict[str, Any]:
        """Times one collective. If it fails anywhere, it fails everywhere."""
        failure: Exception | None = None
        start: Start | None = None
        try:
            start = self._start(one)
            start().wait()
        except Exception as error:  # told to the others before it is raised
            failure = error
        if self.max_over_ranks(float(failure is not None)):
            raise failure or RuntimeError("failed on another rank")
        assert start is not None
        return self._beside(start) if one.words[1] == "beside" else self._alone(start)

    def _start(self, one: Measurement) -> Start:
        dist, ranks = self.dist, one["ranks"]
        group, inside = self.group(ranks, one["step"])
        elements = max(one["bytes"] // 2 // ranks, 1) * ranks
        whole = self.bench.ones(elements)
        part = self.bench.ones(elements // ranks)
        kind = one.words[0]
        if kind == "all_reduce":
            return lambda: dist.all_reduce(whole, group=group, async_op=True)
        if kind == "all_gather":  # renamed in later versions of torch
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            return lambda: gather(whole, part, group=group, async_op=True)
        if kind == "reduce_scatter":
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            return lambda: scatter(part, whole, group=group, async_op=True)
        if kind == "all_to_all":
            other = self.bench.empty(elements)
            return lambda: dist.all_to_all_single(other, whole, group=group, async_op=True)
        if self.rank == inside[0]:
            return lambda: dist.isend(whole, inside[1], group=group)
        return lambda: dist.irecv(whole, inside[0], group=group)

    def _laps(self, lap: Callable[[], object]) -> tuple[list[float], int]:
        """Times of a call on the slowest rank, and calls in a lap: the same count everywhere."""
        one_s = self.max_over_ranks(min(self.timer.laps_s(lap, 3)))
        calls = max(math.ceil(LAP_S / one_s), 1)

        def calls_in_a_row() -> None:
            for _ in range(calls):
                lap()

        lap_s = calls * one_s
        self.timer.laps_s(calls_in_a_row, max(math.ceil(WARM_S / lap_s), 1))
        count = min(max(math.ceil(TIMED_S / lap_s), 5), 50)
        return [seconds / calls for seconds in self.timer.laps_s(calls_in_a_row, count)], calls

    def _result(self, laps: list[float], calls: int) -> dict[str, Any]:
        low, middle, high = quantiles(laps, n=4)
        return {
            "median_s": self.max_over_ranks(median(laps)),
            "least_s": self.max_over_ranks(min(laps)),
            "spread_fraction": self.max_over_ranks((high - low) / middle),
            "laps": len(laps),
            "calls": calls,
        }

    def _alone(self, start: Start) -> dict[str, Any]:
        return self._result(*self._laps(lambda: start().wait()))

    def _beside(self, start: Start) -> dict[str, Any]:
        """A collective and as much computing at once, beside each of them alone.

        `median_s` is the time until both are done; nothing hides if it is the sum of the others.
        """
        torch, side = self.torch, GEMM_SIDE[self.device]
        a, b, c = (self.bench.normal(side, side) for _ in range(3))
        alone = self._alone(start)
        product_s = self.max_over_ranks(median(self._laps(lambda: torch.mm(a, b, out=c))[0]))
        count = max(round(alone["median_s"] / product_s), 1)

        def both() -> None:
            work = start()
            for _ in range(count):
                torch.mm(a, b, out=c)
            work.wait()

        result = self._result(*self._laps(both))
        return result | {"alone_s": alone["median_s"], "compute_s": count * product_s}
