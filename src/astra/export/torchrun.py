"""A launch script for torchrun: one call on every node, nodes in rank order."""

import re
from collections.abc import Mapping, Sequence
from math import gcd

from astra.hardware.cluster import Gpu
from astra.strategy.plan import Plan

Group = tuple[str, int, int]  # GPU type, nodes, GPUs of each
SAFE = re.compile(r"[^A-Za-z0-9._-]+")  # what no name of a folder or a job should hold
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


def nodes_of(plan: Plan) -> list[Group]:
    """(GPU type, nodes, GPUs per node) in the order of ranks.

    Ranks fill the stages in order, so the types come in pipeline order.
    """
    groups = node_groups(plan, {name: (name, count) for name, count in plan.gpus.items()})
    least = gcd(*(each for *_, each in groups))  # torchrun starts as many processes on every node
    return [(name, nodes * each // least, least) for name, nodes, each in groups]


def node_groups(plan: Plan, counts: Mapping[str, tuple[str, int]]) -> list[Group]:
    """Nodes for each name, its GPU type and how many of them."""
    gpus = {pool.gpu.name: pool.gpu for pool in plan.cluster.pools}
    groups = []
    for name, (gpu, count) in counts.items():
        each = _per_node(gpus[gpu], count)
        groups.append((name, count // each, each))
    return groups


def rank_lines(groups: Sequence[Group], what: str = "nodes") -> list[str]:
    """Which nodes are of which type, as `   nodes 0 to 3: 8 x H100 each`."""
    first, lines = 0, []
    for name, count, per_node in groups:
        ranks = f"{first} to {first + count - 1}" if count > 1 else str(first)
        lines.append(f"   {what} {ranks}: {per_node} x {name} each")
        first += count
    return lines


def _per_node(gpu: Gpu, count: int) -> int:
    """Whole nodes, one part of a node, or equal parts of several."""
    return count if count < gpu.node.gpus else gcd(count, gpu.node.gpus)


def launch_script(plan: Plan, notes: Sequence[str] = ()) -> str:
    """The text of `launch.sh`."""
    groups = nodes_of(plan)
    nodes = sum(count for _, count, _ in groups)
    gpus = " + ".join(f"{count} x {name}" for name, count in plan.gpus.items())
    return SCRIPT.format(
        title=f"{one_line(plan.model.name)}: {plan.summary()}, {gpus}",
        last=nodes - 1,
        order="\n#".join(rank_lines(groups)),
        notes="".join(f"# {one_line(note)}\n" for note in notes),
        nodes=nodes,
        per_node=groups[0][2],
        tokenizer=one_line(plan.model.hf_id or "TOKENIZER"),
    )


def one_line(text: str) -> str:
    """A user's text inside a comment: a line break in it would start a command."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
