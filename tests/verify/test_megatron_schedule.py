"""Our pipeline schedules are the ones that Megatron-LM's own code runs."""

import random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.support.frameworks import needs

from astra.simulate.schedule import Schedule, interleaved, one_f_one_b, virtual_order

needs("torch", "triton", "megatron")

from tests.support.megatron_oracle import megatron  # noqa: E402

Operation = tuple[bool, int, int]  # backward, micro-batch, chunk


class Settings:
    """A configuration in which nothing is set but these."""

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Silence:
    """A stage's line to its neighbours, over which nothing is said."""

    def __init__(self, stages: int, stage: int, chunks: int | None) -> None:
        self.config = Settings()
        self.pp_group = SimpleNamespace(size=lambda: stages, rank=lambda: stage)
        self.virtual_pipeline_model_parallel_size = chunks
        self.total_stages, self.current_stage = stages, stage
        self.is_pp_first_stage, self.is_pp_last_stage = stage == 0, stage == stages - 1

    def send_forward_backward_recv_forward_backward(self, *_: object, **__: object) -> object:
        return None, None

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


def schedules() -> Any:
    """Megatron-LM's module of that name."""
    megatron()
    from megatron.core.pipeline_parallel import schedules

    return schedules


def performed(
    stages: int, stage: int, micro_batches: int, *, chunks: int | None = None, group: int = 0
) -> list[Operation]:
    """What a stage does when Megatron-LM runs a step: its schedule, with steps that only note."""
    module, torch = schedules(), megatron()["torch"]
    done: list[Operation] = []

    def forward(*_: object, current_microbatch: int, vp_stage: int = 0, **__: object) -> object:
        done.append((False, current_microbatch, vp_stage))
        return (current_microbatch, vp_stage), 0

    def backward(_: object, output: tuple[int, int], *__: object) -> None:
        done.append((True, *output))

    config = Settings(
        microbatch_group_size_per_vp_stage=group, virtual_pipeline_model_parallel_size=chunks
    )

    class Chunk(torch.nn.Module):  # type: ignore[name-defined,misc]
        model_type = "decoder"

    parts = [Chunk() for _ in range(chunks or 1)]
    for part in parts:
        part.config = config
    single = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    groups = module.ProcessGroupCollection(tp=single, cp=single)
    name = "with" if chunks else "without"
    with (
        mock.patch.object(module, "forward_step", forward),
        mock.patch.object(module, "backward_step", backward),
        mock.patch.object(torch, "zeros", lambda *_, **__: 0),
    ):
        getattr(module, f"forward_backward_pipelining_{name}_interleaving")(
            forward_step_func=None,
            data_iterator=[None] * len(parts),
            model=parts,
            num_microbatches=micro_batches,
            seq_length=1,
            micro_batch_size=1,
            p2p_communicator=Silence(stages, stage, chunks),
            pg_collection=groups,
        )
    return done


def ours(schedule: Schedule, stage: int) -> list[Operation]:
    """One of our orders in the same words."""
    columns = (schedule.backward, schedule.micro_batch, schedule.chunk)
    return list(zip(*(column[stage].tolist() for column in columns), strict=True))


def test_1f1b_does_what_megatron_does() -> None:
    dice = random.Random(0)
    for _ in range(60):
        stages, micro_batches = dice.randint(2, 12), dice.randint(1, 40)
        schedule = one_f_one_b(stages, micro_batches)
        for stage in range(stages):
            assert ours(schedule, stage) == performed(stages, stage, micro_batches)


def test_interleaving_does_what_megatron_does() -> None:
    dice = random.Random(1)
    short = 0
    for _ in range(60):
        stages, chunks = dice.randint(2, 8), dice.randint(2, 5)
        group = stages + dice.choice([0, 0, 1, 4])
        rest = dice.choice([0, *range(stages, group)])
        micro_batches = group * dice.randint(1, 4) + rest
        schedule = interleaved(stages, chunks, micro_batches, group)
        for stage in range(stages):
            theirs = performed(stages, stage, micro_batches, chunks=chunks, group=group)
            assert ours(schedule, stage) == theirs
        short += rest > 0
    assert short >= 5


def test_phases_of_interleaving_are_those_of_megatron_with_expert_overlap_too() -> None:
    dice = random.Random(2)
    for _ in range(300):
        stages, chunks, extra = dice.randint(2, 16), dice.randint(2, 6), dice.randint(0, 1)
        micro_batches, group = dice.randint(1, 60), stages + dice.choice([0, 0, 1, 5])
        schedule = interleaved(stages, chunks, micro_batches, group, extra_warmup=extra)
        for stage in range(stages):
            total, _, warmup, turns = schedules().get_pp_rank_microbatches(
                micro_batches,
                chunks,
                group,
                overlap_moe_expert_parallel_comm=bool(extra),
                p2p_communicator=Silence(stages, stage, chunks),
            )
            phases = [False] * warmup + [False, True] * turns + [True] * warmup
            assert total == micro_batches * chunks
            assert schedule.backward[stage].tolist() == phases


def test_chunks_and_micro_batches_take_turns_as_in_megatron() -> None:
    dice = random.Random(3)
    for _ in range(300):
        micro_batches, chunks, group = dice.randint(1, 60), dice.randint(1, 6), dice.randint(1, 20)
        table = schedules().get_schedule_table(micro_batches, chunks, group)
        chunk, micro_batch = virtual_order(chunks, micro_batches, group)
        assert list(zip(micro_batch.tolist(), chunk.tolist(), strict=True)) == table
