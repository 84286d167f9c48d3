"""A launch script for torchrun: one call on every node, nodes in rank order."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
{usage}set -euo pipefail
here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"

set -a
# shellcheck source=/dev/null
source "$here/env.txt"
set +a
{arguments}
{start}
"""
ARGUMENTS = """
arguments=()
while IFS= read -r line; do
  read -ra words <<<"$line"
  arguments+=("${words[@]}")
done <"$here/args.txt"
"""
TORCHRUN = """\
exec torchrun \\
  --nnodes {nodes} --nproc-per-node {per_node} \\
  --node-rank "${{NODE_RANK:?the rank of this node, from 0}}" \\
  --master-addr "${{MASTER_ADDR:?the address of node 0}}" \\
  --master-port "${{MASTER_PORT:-29500}}" \\
  {program}"""


@dataclass(frozen=True, slots=True)
class Program:
    """What every node starts, in the words of a shell."""

    run: str  # what follows torchrun's own options, or the whole command with `{nodes}` in it
    usage: tuple[str, ...]  # comment lines: what may follow on the command line
    reads_arguments: bool = True  # from args.txt
    by_torchrun: bool = True


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


def launch_script(plan: Plan, program: Program, notes: Sequence[str] = ()) -> str:
    """The text of `launch.sh`."""
    groups = nodes_of(plan)
    sizes = {"nodes": sum(count for _, count, _ in groups), "per_node": groups[0][2]}
    gpus = " + ".join(f"{count} x {name}" for name, count in plan.gpus.items())
    if program.by_torchrun:
        start = TORCHRUN.format(program=program.run, **sizes)
    else:
        start = program.run.format(total=sum(plan.gpus.values()), **sizes)
    return SCRIPT.format(
        title=f"{one_line(plan.model.name)}: {plan.summary()}, {gpus}",
        last=sizes["nodes"] - 1,
        order="\n#".join(rank_lines(groups)),
        notes="".join(f"# {one_line(note)}\n" for note in notes),
        usage="".join(f"# {line}\n" for line in program.usage),
        arguments=ARGUMENTS if program.reads_arguments else "",
        start=start,
    )


def one_line(text: str) -> str:
    """A user's text inside a comment: a line break in it would start a command."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
