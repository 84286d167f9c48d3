"""`--what-if network=x0.5`, `gpus=+64xh200`: a search asked again with something different."""

import re
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from astra.errors import InputError, did_you_mean, shorten
from astra.explain.what_if import with_more
from astra.hardware.cluster import Cluster
from astra.hardware.gpus_option import parse_gpus
from astra.money.user_prices import gpu_named
from astra.money.what_if import change_factor
from astra.notes import NoteCode, note
from astra.report.document import AnsweredWhatIf
from astra.report.words import with_words
from astra.search.evaluator import Limits
from astra.search.query import Query
from astra.search.result import Result
from astra.search.solve import solve

FIGURES = {
    "network": NoteCode.MORE_NETWORK,
    "link": NoteCode.MORE_LINK,
    "memory": NoteCode.MORE_MEMORY,
    "memory-bandwidth": NoteCode.MORE_MEMORY_BANDWIDTH,
    "compute": NoteCode.MORE_COMPUTE,
}
KEYS = (*FIGURES, "gpus")
FORM = (
    "The form is KEY[.GPU]=CHANGE with -20%, +10%, x2 or x0.5, or gpus=+64xh200; the keys are "
    + ", ".join(KEYS)
    + "; prices and failures go with --objective money."
)


def answered_what_ifs(
    query: Query, found: Result, changed: Mapping[str, Cluster], limits: Limits
) -> tuple[AnsweredWhatIf, ...]:
    """The answer's change on each of these machines, as far as there was time to search them."""
    answers = []
    for text, cluster in changed.items():
        best = solve(replace(query.on(cluster), suggest=False), limits).best
        if limits.stopped is not None:  # it is not known what the answer would be
            break
        if best is None:
            answers.append(AnsweredWhatIf(what=text, plan=None))
            continue
        plain = msgspec.structs.replace(best.plan, cluster=query.cluster)
        answers.append(
            AnsweredWhatIf(
                what=text,
                plan=with_words(best),
                step_change_fraction=best.step_s / found.best.step_s - 1 if found.best else None,
                same_plan=found.best is not None and plain == found.best.plan,
            )
        )
    return tuple(answers)


def changed_cluster(cluster: Cluster, text: str) -> Cluster:
    """The machines with all that a text changes."""
    for entry in text.split(","):
        where = f"--what-if {shorten(entry.strip())}"
        name, equals, amount = (part.strip() for part in entry.partition("="))
        key, _, gpu = name.partition(".")
        if not equals:
            raise InputError(f"{where}: no change. {FORM}")
        if key not in KEYS:
            raise InputError(f"{where}: no key {shorten(key)}. {did_you_mean(key, KEYS, FORM)}")
        if key == "gpus":
            cluster = _with_gpus(cluster, amount, where)
            continue
        change = note(FIGURES[key], factor=change_factor(amount, where, FORM))
        if gpu:
            full = gpu_named(gpu, [pool.gpu for pool in cluster.pools], where).name
            if full not in {pool.gpu.name for pool in cluster.pools}:
                raise InputError(f"{where}: {full} is not among the GPUs. Add it to --gpus.")
            change = note(change.code, **change.facts, gpu=full)
        cluster = with_more(cluster, change)
    return cluster


def _with_gpus(cluster: Cluster, amount: str, where: str) -> Cluster:
    """`+64xh200`: so many more, or with a minus fewer, of a type."""
    said = re.fullmatch(r"([+-])([0-9]{1,7}) *x *(\S+)", amount)
    if not said:
        raise InputError(f"{where}: {shorten(amount)} is no change. {FORM}")
    added, _ = parse_gpus(f"{said[3]}:{said[2]}")
    (new,) = added.pools
    counts = {pool.gpu.name: pool for pool in cluster.pools}
    if said[1] == "-":
        old = counts.get(new.gpu.name)
        if old is None or old.count < new.count:
            there = old.count if old else 0
            raise InputError(f"{where}: there are {there} {new.gpu.name}; {new.count} cannot go.")
        new = msgspec.structs.replace(old, count=old.count - new.count)
        counts[new.gpu.name] = new
        pools = [pool for pool in counts.values() if pool.count]
        if not pools:
            raise InputError(f"{where}: that leaves no GPU.")
        return msgspec.structs.replace(cluster, pools=tuple(pools))
    old = counts.get(new.gpu.name)  # with its own nodes and links
    new = msgspec.structs.replace(old, count=old.count + new.count) if old else new
    names = sorted({*counts, new.gpu.name})
    all_pools = tuple({**counts, new.gpu.name: new}[name] for name in names)
    return msgspec.structs.replace(cluster, pools=all_pools, max_gpus=None)
