"""A launch script for torchrun: one call on every node, nodes in rank order."""

from collections.abc import Sequence
from math import gcd

from astra.hardware.cluster import Gpu
from astra.strategy.plan import Plan

SCRIPT = """\
#!/usr/bin/env bash
# {title}
{notes}# Run on every node, with NODE_RANK from 0 to {last}, MASTER_ADDR the first node's address:
#{order}
# What follows on the command line is handed to Megatron-LM: data, checkpoints, logging. Example:
#   NODE_RANK=0 MASTER_ADDR=10.0.0.1 MEGATRON=~/Megatron-LM ./launch.sh \\
#     --data-path corpus_text_document --tokenizer-type HuggingFaceTokenizer \\
#     --tokenizer-model {tokenizer} --save checkpoints --save-interval 500 --log-interval 1
# A first try without data, one log line a step:
#   ./launch.sh --mock-data --tokenizer-type NullTokenizer --log-interval 1 --log-throughput \\
#     --eval-iters 0
set -euo pipefail
here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"

set -a
# shellcheck source=/dev/null
source "$here/env.txt"
set +a

arguments=()
while IFS= read -r line; do
  read -ra words <<<"$line"
  arguments+=("${{words[@]}}")
done <"$here/args.txt"

exec torchrun \\
  --nnodes {nodes} --nproc-per-node {per_node} \\
  --node-rank "${{NODE_RANK:?the rank of this node, from 0}}" \\
  --master-addr "${{MASTER_ADDR:?the address of node 0}}" \\
  --master-port "${{MASTER_PORT:-29500}}" \\
  "${{MEGATRON:?the folder of Megatron-LM}}/pretrain_gpt.py" \\
  "${{arguments[@]}}" "$@"
"""


def nodes_of(plan: Plan) -> list[tuple[str, int, int]]:
    """(GPU type, nodes, GPUs per node) in the order of ranks.

    Ranks fill the stages in order, so the types come in pipeline order.
    """
    counts = plan.gpus
    gpus = {pool.gpu.name: pool.gpu for pool in plan.cluster.pools}
    per_node = {name: _per_node(gpus[name], count) for name, count in counts.items()}
    least = gcd(*per_node.values())  # torchrun starts as many processes on every node
    return [(name, count // least, least) for name, count in counts.items()]


def _per_node(gpu: Gpu, count: int) -> int:
    """Whole nodes, one part of a node, or equal parts of several."""
    return count if count < gpu.node.gpus else gcd(count, gpu.node.gpus)


def launch_script(plan: Plan, notes: Sequence[str] = ()) -> str:
    """The text of `launch.sh`."""
    groups = nodes_of(plan)
    nodes = sum(count for _, count, _ in groups)
    first = 0
    lines = []
    for name, count, per_node in groups:
        ranks = f"{first} to {first + count - 1}" if count > 1 else str(first)
        lines.append(f"   nodes {ranks}: {per_node} x {name} each")
        first += count
    gpus = " + ".join(f"{count} x {name}" for name, count in plan.gpus.items())
    return SCRIPT.format(
        title=f"{_one_line(plan.model.name)}: {plan.summary()}, {gpus}",
        last=nodes - 1,
        order="\n#".join(lines),
        notes="".join(f"# {_one_line(note)}\n" for note in notes),
        nodes=nodes,
        per_node=groups[0][2],
        tokenizer=_one_line(plan.model.hf_id or "TOKENIZER"),
    )


def _one_line(text: str) -> str:
    """A user's text inside a comment: a line break in it would start a command."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
