"""`--what-if network=x0.5`, `gpus=+64xh200`, `price.h100=1.99`: a search asked again with something
different.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from astra.errors import InputError, NoPriceError, did_you_mean, shorten
from astra.explain.what_if import with_more
from astra.hardware.cluster import Cluster
from astra.hardware.gpus_option import parse_gpus
from astra.money.catalogue import Offer
from astra.money.offers import offers_of
from astra.money.options import MoneyOptions
from astra.money.user_prices import gpu_named, parse_prices, parse_usd
from astra.money.what_if import KEYS as MARKET_KEYS
from astra.money.what_if import (
    OF_A_GPU,
    MarketChange,
    change_factor,
    changed_conditions,
    changed_offers,
    check_changes,
)
from astra.notes import Note, NoteCode, note
from astra.recommend.market_result import AnsweredWhatIf
from astra.recommend.money_answer import in_short
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
KEYS = tuple(dict.fromkeys((*FIGURES, "gpus", *MARKET_KEYS, "owned")))
FORM = (
    "The form is KEY[.GPU]=CHANGE with -20%, +10%, x2 or x0.5, gpus=+64xh200, price.h100=1.99 (USD "
    "for an hour of one GPU) or owned.h200=32000 (USD that one was bought for); the keys are "
    + ", ".join(KEYS)
    + "."
)

MOST_USD = 1e9  # that a GPU costs


@dataclass(frozen=True, slots=True)
class _Entry:
    """`KEY[.GPU]=AMOUNT`."""

    key: str
    gpu: str | None  # by its full name; None: of all of them
    amount: str
    where: str

    @property
    def usd(self) -> float | None:
        """A price, in place of a change."""
        is_price = self.gpu and self.key in ("price", "spot-price", "owned")
        plain = re.fullmatch(r"\$?[0-9]*\.?[0-9]+", self.amount)
        return parse_usd(self.amount, self.where, MOST_USD) if is_price and plain else None


def answered_what_ifs(
    found: Result, changed: Mapping[str, Query], limits: Limits
) -> tuple[AnsweredWhatIf, ...]:
    """The answer's change with each of these questions, as far as there was time for them."""
    answers = []
    for text, query in changed.items():
        other = solve(replace(query, suggest=False), limits, found.mixtures)
        if limits.stopped is not None:  # it is not known what the answer would be
            break
        answers.append(_change(text, found, other))
    return tuple(answers)


def _change(what: str, found: Result, other: Result) -> AnsweredWhatIf:
    """From the answer to another."""
    old, new = found.best, other.best
    if new is None:
        return AnsweredWhatIf(what=what, plan=None)
    goals = other.market.wished if other.market else None
    answer = AnsweredWhatIf(
        what=what,
        plan=with_words(new),
        possible=goals is None or goals.possible,
        frontier=tuple(map(in_short, other.frontier)),
    )
    if old is None:
        return answer
    bare = msgspec.structs.replace(new.plan, cluster=old.plan.cluster)
    return msgspec.structs.replace(
        answer,
        step_change_fraction=new.step_s / old.step_s - 1,
        same_plan=bare == old.plan,
        usd_change=None if new.usd is None or old.usd is None else new.usd - old.usd,
        hours_change=None if new.hours is None or old.hours is None else new.hours - old.hours,
    )


def changed_query(query: Query, text: str) -> Query:
    """The question with all that a text changes: machines, and what they are rented for."""
    entries, cluster = [], query.cluster
    for part in text.split(","):
        where = f"--what-if {shorten(part.strip())}"
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        key, _, gpu = name.partition(".")
        if not equals:
            raise InputError(f"{where}: no change. {FORM}")
        if key not in KEYS:
            raise InputError(f"{where}: no key {shorten(key)}. {did_you_mean(key, KEYS, FORM)}")
        if key == "gpus":
            cluster = _with_gpus(cluster, amount, where)
        else:
            entries.append((key, gpu, amount, where))
    read = [_read(cluster, *entry) for entry in entries]
    offers, query = _market(query, cluster, [each for each in read if each.key not in FIGURES])
    for each in read:
        if each.key in FIGURES:
            cluster = with_more(cluster, _figure(each))
    if offers is not None:
        network = [_market_change(each) for each in read if each.key == "network"]
        offers = tuple(changed_offers(offers, network))
    return replace(query, cluster=cluster, offers=offers)


def _read(cluster: Cluster, key: str, gpu: str, amount: str, where: str) -> _Entry:
    if not gpu:
        if key == "owned":
            raise InputError(f"{where}: of which type? {FORM}")
        return _Entry(key, None, amount, where)
    if key not in (*FIGURES, *OF_A_GPU, "owned"):
        raise InputError(f"{where}: {key} is the same for all GPUs; leave .{gpu} out.")
    gpus = [pool.gpu for pool in cluster.pools]
    full = gpu_named(gpu, gpus, where).name
    if full not in {each.name for each in gpus}:
        raise InputError(f"{where}: {full} is not among the GPUs. Add it to --gpus.")
    return _Entry(key, full, amount, where)


def _figure(entry: _Entry) -> Note:
    factor = change_factor(entry.amount, entry.where, FORM)
    gpu = {"gpu": entry.gpu} if entry.gpu else {}
    return note(FIGURES[entry.key], factor=factor, **gpu)


def _market_change(entry: _Entry) -> MarketChange:
    usd = entry.usd
    factor = 1.0 if usd is not None else change_factor(entry.amount, entry.where, FORM)
    return MarketChange(
        key=entry.key, gpu=entry.gpu, where=entry.where, factor=factor, usd_per_gpu_hour=usd
    )


def _market(
    query: Query, cluster: Cluster, entries: Sequence[_Entry]
) -> tuple[tuple[Offer, ...] | None, Query]:
    """What these machines, as they were, are rented for, with all changes; and the question with
    other failures, and GPUs that are owned or have a price besides.
    """
    options, goals = query.money, query.goals
    if options is None or goals is None or goals.tokens is None:
        if entries:
            raise InputError(f"{entries[0].where}: hours and dollars need --tokens; add it.")
        return None, query
    there = {pool.gpu.name for pool in query.cluster.pools}
    changes = []
    for each in entries:
        if each.key == "owned" or (each.usd is not None and each.gpu not in there):
            options = _with_price(options, each)
        else:
            changes.append(_market_change(each))
    try:
        offers = offers_of(options, cluster)
    except NoPriceError:
        if entries:
            raise
        return None, query
    check_changes(changes, cluster, offers, options.spot, goals.conditions.failures)
    conditions = changed_conditions(goals.conditions, changes)
    goals = msgspec.structs.replace(goals, conditions=conditions)
    found = tuple(changed_offers(offers, changes))
    return found, replace(query, money=options, goals=goals)


def _with_price(options: MoneyOptions, entry: _Entry) -> MoneyOptions:
    """With a price of a type, or with what one of it was bought for."""
    if entry.usd is None or entry.gpu is None:
        raise InputError(f"{entry.where}: {shorten(entry.amount)} is no price. {FORM}")
    said = getattr(options, entry.key)
    if isinstance(said, dict):
        said = ",".join(f"{name}={usd}" for name, usd in said.items())
    known = parse_prices(said, entry.where, MOST_USD) if said else {}
    return msgspec.structs.replace(options, **{entry.key: {**known, entry.gpu: entry.usd}})


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
