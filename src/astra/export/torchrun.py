"""A launch script for torchrun: one call on every node, nodes in rank order."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

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
  --node-rank "${{NODE_RANK:?the rank of this node, from 0}}" \\
  --nnodes {nodes} --nproc-per-node {per_node} \\
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
    """(GPU type, nodes, GPUs of each) in the order of ranks."""
    return node_groups(plan, [(gpu, gpu, count) for gpu, count in plan.rank_blocks])


def node_groups(plan: Plan, blocks: Iterable[tuple[str, str, int]]) -> list[Group]:
    """Nodes for every block of ranks (its name, GPU type and how many): whole ones, then a part."""
    sizes = {pool.gpu.name: pool.gpu.node.gpus for pool in plan.cluster.pools}
    groups = []
    for name, gpu, count in blocks:
        whole, rest = divmod(count, sizes[gpu])
        groups += [(name, whole, sizes[gpu])] if whole else []
        groups += [(name, 1, rest)] if rest else []
    return groups


def rank_lines(groups: Sequence[Group], what: str = "nodes") -> list[str]:
    """Which nodes are of which type, as `   nodes 0 to 3: 8 x H100 each`."""
    first, lines = 0, []
    for name, count, per_node in groups:
        if count > 1:
            lines.append(f"   {what} {first} to {first + count - 1}: {per_node} x {name} each")
        else:
            lines.append(f"   {what.removesuffix('s')} {first}: {per_node} x {name}")
        first += count
    return lines


def kinds_of(groups: Sequence[Group], what: str = "nodes") -> list[str]:
    """The same for a list, where there are several kinds of nodes."""
    return [line.strip() for line in rank_lines(groups, what)] if len(groups) > 1 else []


def _per_node(groups: Sequence[Group]) -> str:
    """GPUs of a node for the shell to reckon: a number, or one that the node's rank chooses.

    >>> _per_node([("A", 2, 8), ("A", 1, 4), ("B", 1, 4)])
    'NODE_RANK < 2 ? 8 : 4'
    """
    ends = accumulate(nodes for _, nodes, _ in groups)
    *others, (_, following) = zip(ends, (each for *_, each in groups), strict=True)
    text = str(following)
    for end, each in reversed(others):
        text = text if each == following else f"NODE_RANK < {end} ? {each} : {text}"
        following = each
    return text


def launch_script(plan: Plan, program: Program, notes: Sequence[str] = ()) -> str:
    """The text of `launch.sh`."""
    groups = nodes_of(plan)
    nodes, each = sum(count for _, count, _ in groups), _per_node(groups)
    sizes = {"nodes": nodes, "per_node": each, "total": sum(plan.gpus.values())}
    if not each.isdigit():  # accelerate starts a node's share of the total, as if all had the same
        sizes |= {"per_node": f'"$(({each}))"', "total": f'"$(({nodes} * ({each})))"'}
    gpus = " + ".join(f"{count} x {name}" for name, count in plan.gpus.items())
    if program.by_torchrun:
        start = TORCHRUN.format(program=program.run, **sizes)
    else:
        start = program.run.format(**sizes)
    return SCRIPT.format(
        title=f"{one_line(plan.model.name)}: {plan.summary()}, {gpus}",
        last=nodes - 1,
        order="\n#".join(rank_lines(groups)),
        notes="".join(f"# {one_line(note)}\n" for note in notes),
        usage="".join(f"# {line}\n" for line in program.usage),
        arguments=ARGUMENTS if program.reads_arguments else "",
        start=start,
    )


def one_line(text: str) -> str:
    """A user's text inside a comment: a line break in it would start a command."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
