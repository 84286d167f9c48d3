"""Megatron-LM's command line as files: options, environment and a script for every node."""

from collections.abc import Mapping, Sequence

from astra.export.megatron import arguments, environment
from astra.export.torchrun import Program, launch_script, one_line
from astra.strategy.plan import Plan


def files(
    plan: Plan, notes: Sequence[str], *, train_iters: int, learning_rate: float
) -> dict[str, str]:
    """Name and text of every file but the plan."""
    found = arguments(plan, train_iters=train_iters, learning_rate=learning_rate)
    return {
        "args.txt": "".join(f"{' '.join(argument)}\n" for argument in found),
        "env.txt": environment_text(environment(plan)),
        "launch.sh": launch_script(plan, program(plan), notes),
    }


def environment_text(env: Mapping[str, str]) -> str:
    """`NAME=value` a line, in the order of names."""
    return "".join(f"{name}={value}\n" for name, value in sorted(env.items()))


def program(plan: Plan) -> Program:
    """Megatron-LM's own script, with the options of args.txt."""
    tokenizer = one_line(plan.model.hf_id or "TOKENIZER")
    return Program(
        run='"${MEGATRON:?the folder of Megatron-LM}/pretrain_gpt.py" \\\n  "${arguments[@]}" "$@"',
        usage=(
            "What follows on the command line is handed to Megatron-LM: data, checkpoints, "
            "logging. Example:",
            "  NODE_RANK=0 MASTER_ADDR=10.0.0.1 MEGATRON=~/Megatron-LM ./launch.sh \\",
            "    --data-path corpus_text_document --tokenizer-type HuggingFaceTokenizer \\",
            f"    --tokenizer-model {tokenizer} --save checkpoints --save-interval 500 "
            "--log-interval 1",
            "A first try without data, one log line a step:",
            "  ./launch.sh --mock-data --tokenizer-type NullTokenizer --log-interval 1 "
            "--log-throughput \\",
            "    --eval-iters 0",
        ),
    )
