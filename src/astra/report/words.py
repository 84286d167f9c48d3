"""Notes in words: a sentence for each code. Nowhere else are they made."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from astra.cost.result import PricedPlan
from astra.errors import did_you_mean, either
from astra.notes import HEADINGS, Note, NoteCode

GIB = 2**30
Facts = Mapping[str, Any]


def _gib(facts: Facts, name: str, digits: int = 0) -> str:
    return f"{facts[name] / GIB:.{digits}f}"


def _count_words(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count > 1 else ''}"


def _release(facts: Facts) -> str:
    known = facts["known"]
    listing = f"Releases that were: {', '.join(known)}." if known else "None of its releases was."
    return (
        f"stack {facts['stack']}@{facts['release']}: that release was not measured, so it counts "
        f"as {facts['stack']} on the whole. {did_you_mean(facts['release'], known, listing)}"
    )


def _ram_too_small(facts: Facts) -> str:
    return (
        f"host memory: {_gib(facts, 'needed_bytes')} GiB a node needed for offload, "
        f"{_gib(facts, 'usable_bytes')} GiB usable ({facts['usable_fraction']:.0%} of its RAM)"
    )


def _instance_ram(facts: Facts) -> str:
    return (
        f"{_gib(facts, 'needed_bytes')} GiB a node of offload do not fit into {facts['cloud']} "
        f"{facts['instance']}: {facts['usable_fraction']:.0%} of its {_gib(facts, 'ram_bytes')} "
        "GiB of RAM are counted on. Try less offload, or --objective money, which looks for "
        "machines that hold it"
    )


def _factors(facts: Facts) -> str:
    each = ", ".join(f"{name} x {value:g}" for name, value in facts["factors"].items())
    return f"stack {facts['stack']} on {facts['setting']}: {each} ({facts['runs']} runs)"


def _stopped(facts: Facts) -> str:
    why = "at its time limit" if facts["by"] == "time_limit" else "by the user"
    gap = facts["gap_fraction"]
    least = "" if gap is None else f"; no plan is faster by more than {gap:.1%}"
    what = f"these are the best so far{least}" if facts["plans"] else "no plan was found yet"
    return f"stopped {why} after {facts['candidates']:,} candidates: {what}"


WORK = {
    "kernels": "the kernels of this plan",
    "tensor": "tensor-parallel traffic",
    "expert": "traffic between experts",
    "data": "traffic between replicas",
}


def _contradiction(facts: Facts) -> str:
    """Which of two GPUs is predicted to be slower than it can be, and how much of a step it is."""
    why = "over the same link" if facts["same_link"] else "which has no more of anything"
    share = facts["step_fraction"]
    part = f"{share:.0%} of the step" if share >= 0.005 else "little or none in this plan"
    return (
        f"{WORK[facts['work']]} ({part}) is predicted to take "
        f"{facts['ratio']:.2g} x as long on {facts['slower']} as on {facts['faster']}, {why}: one "
        "of the two is wrong"
    )


UNTRIED = {
    "searched": "not searched",
    "follows": "set otherwise by a search",
    "asked": "tried only when asked for",
}


def _outside_space(facts: Facts) -> str:
    """What a search would not try, why, and what would make it."""
    said = ", ".join(f"{name} {value}" for name, value in facts["settings"].items())
    why = f" ({next(iter(facts['why'].values()))})" if len(facts["why"]) == 1 else ""
    one = len(facts["settings"]) == 1
    option = facts["option"] or "no option"
    return (
        f"{said}: {UNTRIED[facts['how']]}{why}; {option} {'includes it' if one else 'include them'}"
    )


def _needs_library(facts: Facts) -> str:
    return (
        f"the best plan needs {facts['library']} on all nodes ({facts['module']} in Python); "
        f"without it, with --set dispatcher=alltoall, the same plan takes {facts['step_s']:.3g} s "
        f"({facts['more_fraction']:+.1%})"
    )


def _dtypes_save(facts: Facts) -> str:
    return (
        f"{facts['what']} would save {facts['saved_fraction']:.1%} or more (--set "
        f"{' --set '.join(facts['settings'])}); they change the training's numbers, so they are off"
    )


def _ram_of_plans(facts: Facts) -> str:
    ranks = ", ".join(map(str, facts["ranks"]))
    one = len(facts["ranks"]) == 1
    which = f"plan {ranks} offloads" if one else f"plans {ranks} offload up to"
    return (
        f"{which} {_gib(facts, 'needed_bytes')} GiB a node, and {RAM_UNKNOWN}: see that it is "
        "enough, or give ram_bytes in a cluster file"
    )


def _vendors(facts: Facts) -> str:
    names, libraries = (" and ".join(facts[name]) for name in ("vendors", "libraries"))
    return (
        f"{names} GPUs are planned apart: no job has both, for {libraries} do not speak to each "
        "other"
    )


def _not_narrowed(facts: Facts) -> str:
    asked = " ".join(f"--set {name}" for name in facts["settings"])
    excluded = "; FlagScale excludes interleaving there" if facts["interleaved"] else ""
    return (
        f"{asked}: pipelines over several GPU types are not searched for {facts['runtime']}, where "
        f"{', '.join(facts['narrowed_by'])} can be narrowed{excluded}"
    )


def _without_units(facts: Facts) -> str:
    other = "; --precision fp16 would use it" if facts["has_fp16"] else ""
    return f"{facts['gpu']} is left out: it has no {facts['precision']} units{other}"


def _list_price(facts: Facts) -> str:
    return (
        f"{facts['gpu']}: its nodes and network as described; no price is given for them, so "
        f"${facts['usd_per_gpu_hour']:.2f} an hour is the {facts['source']}"
        f"{' spot' * facts['spot']} ({facts['date']}). usd_per_hour or --price gives another"
    )


def _apart(facts: Facts) -> str:
    elsewhere = "; --any-region looks at them" if facts["elsewhere"] else ""
    return (
        "clusters of several GPU types are not looked at: no two of these are to be had in one "
        "cloud and region, or both at prices that were given, in nodes that a network is known to "
        f"join{elsewhere}"
    )


def _memory_binds(facts: Facts) -> str:
    return (
        f"memory of stage {facts['stage']} on {facts['gpu']}: {_gib(facts, 'needed_bytes', 1)} GiB "
        f"needed, {_gib(facts, 'usable_bytes', 1)} GiB usable"
    )


def _rules_bind(facts: Facts) -> str:
    names = ", ".join(f"{name} ({count:,})" for name, count in facts["removed"].items())
    return f"{facts['reason']}; rules remove every plan: {names}"


def _settings_bind(facts: Facts) -> str:
    asked = " ".join(f"--set {name}={values}" for name, values in facts["settings"].items())
    return (
        f"{asked or 'the degrees there are'} leaves no plan for batch {facts['global_batch']} on "
        f"up to {facts['gpus']} GPUs"
    )


def _try_without_setting(facts: Facts) -> str:
    values = facts["searched"]
    known = f" ({facts['setting']} {either(values)} are searched)" if values else ""
    return f"without --set {facts['setting']}={facts['values']}{known}"


def _try_without_settings(facts: Facts) -> str:
    left = " ".join(f"--set {name}" for name in facts["settings"])
    return f"without {left} ({facts['summary']} fits)"


def _forbidden(facts: Facts) -> str:
    reasons, removed = facts["reasons"], facts["removed"]
    said = [f"{reasons[name]} [rule {name}, {n:,} candidates]" for name, n in removed.items()]
    return "; ".join(said[:3])


def _of_type(facts: Facts) -> str:
    return f" of {facts['gpu']}" if facts.get("gpu") else ""


RAM_UNKNOWN = "how much RAM a node has is not known"


def _small_nodes(facts: Facts) -> str:
    kinds = _count_words(facts["kinds"], "kind")
    return (
        f"{kinds} of nodes with less than {facts['least_gib']:g} GiB of RAM a GPU are left out, "
        f"such as {facts['cloud']} {facts['instance']}: {_gib(facts, 'ram_bytes')} GiB beside "
        f"{facts['gpus']} {facts['gpu']}"
    )


def _clouds_left_out(facts: Facts) -> str:
    old = ", ".join(f"{cloud} ({date[:7]})" for cloud, date in facts["old"].items())
    asked = f"old price lists are left out unless --cloud names one: {old}; " if old else ""
    return f"{asked}no prices are known of {', '.join(facts['missing'])}: --price gives one"


SENTENCES: dict[NoteCode, str | Callable[[Facts], str]] = {
    NoteCode.UNKNOWN_RELEASE: _release,
    NoteCode.DOES_NOT_FIT: lambda facts: (
        f"does not fit: stage {facts['stage']} needs {_gib(facts, 'needed_bytes', 1)} GiB, "
        f"{_gib(facts, 'usable_bytes', 1)} GiB are usable beside the margin"
    ),
    NoteCode.RAM_TOO_SMALL: _ram_too_small,
    NoteCode.TENSOR_OVER_NETWORK: (
        "tp {tp} is more than a node or link domain of {gpu} has ({near}): every layer crosses the "
        "network"
    ),
    NoteCode.RAM_UNKNOWN: lambda facts: (
        f"{_gib(facts, 'needed_bytes')} GiB a node are offloaded, and {RAM_UNKNOWN}"
    ),
    NoteCode.NOT_LAUNCHABLE: (
        "no public runtime launches it: its replicas differ in make or take different numbers of "
        "micro-batches"
    ),
    NoteCode.BEYOND_POSITIONS: lambda facts: (
        f"sequence length {facts['seq_len']:,} is beyond the {facts['positions']:,} positions "
        f"{facts['model']} was made for"
    ),
    NoteCode.NO_MONEY: "hours and dollars need tokens and a price",
    NoteCode.NO_TOKENS: "hours and dollars need --tokens",
    NoteCode.NO_PRICE: "{error}",
    NoteCode.UNFIT_MONEY: (
        "hours and dollars are of a plan that does not fit: no run will take or cost that"
    ),
    NoteCode.INSTANCE_RAM_TOO_SMALL: _instance_ram,
    NoteCode.PAPER_FORMULA: lambda facts: (
        "pipeline by the formula of arXiv 2502.13480; the simulator gives "
        f"{facts['simulated_s']:.4g} s ({facts['excess_fraction']:+.1%})"
    ),
    NoteCode.KERNEL_SOURCE: lambda facts: (
        f"{facts['source']}: {facts['fraction']:.0%} of kernel time"
    ),
    NoteCode.OUTSIDE_MEASURED: lambda facts: (
        f"{facts['fraction']:.0%} of kernel time is outside of what was measured"
    ),
    NoteCode.STACK_SOURCE: "stack {stack}: {kind}, {where}",
    NoteCode.STACK_FACTORS: _factors,
    NoteCode.GPU_ASSUMED: "{gpu}: {what}",
    NoteCode.CONTRADICTS_HARDWARE: _contradiction,
    NoteCode.OUTSIDE_SPACE: _outside_space,
    NoteCode.GPU_READ_AS: "{written} was read as {gpu}",
    NoteCode.EQUAL_GPUS: "{gpu} has the same data as {first}: counted as {count} of the latter",
    NoteCode.PARTIAL_NODES: lambda facts: (
        f"{facts['count']} {facts['gpu']} do not fill nodes of {facts['node_gpus']}: "
        f"plans use at most {facts['used']} of them"
    ),
    NoteCode.PROVEN_ANYWAY: "exact: on one GPU type every search is proven without it",
    NoteCode.MTP_LEFT_OUT: lambda facts: (
        f"multi-token prediction ({_count_words(facts['layers'], 'layer')}) is left out: plans of "
        f"{facts['runtime']} do not train it"
    ),
    NoteCode.COUNT_ASSUMED: (
        "up to {count:,} GPUs of a type are looked at where --gpus has no count"
    ),
    NoteCode.STOPPED_EARLY: _stopped,
    NoteCode.NONE_FITS_SURELY: lambda facts: (
        f"no plan fits with a probability of {facts['probability']:.0%}: all that fit count"
    ),
    NoteCode.NEEDS_LIBRARY: _needs_library,
    NoteCode.DTYPES_SAVE: _dtypes_save,
    NoteCode.BELOW_THROUGHPUT: lambda facts: (
        f"no plan on up to {facts['gpus']:,} GPUs reaches {facts['tokens_per_s']:,.0f} tokens/s; "
        "the fastest"
    ),
    NoteCode.RAM_UNKNOWN_OF_PLANS: _ram_of_plans,
    NoteCode.VENDORS_APART: _vendors,
    NoteCode.NO_MIXED_PIPELINES: "plans of {runtime} have no pipelines over several GPU types",
    NoteCode.NO_CONTEXT_OVER_TYPES: lambda facts: (
        f"cp={','.join(map(str, facts['cp']))} leaves no pipeline over several GPU types for "
        "flagscale, which excludes context parallelism there"
    ),
    NoteCode.NOT_NARROWED_OVER_TYPES: _not_narrowed,
    NoteCode.TYPE_WITHOUT_UNITS: _without_units,
    NoteCode.TYPE_AGAINST_RULES: "{gpu} is left out: the rules allow no plan on it",
    NoteCode.TYPE_TOO_SMALL: lambda facts: (
        f"{facts['gpu']} is left out: {_gib(facts, 'usable_bytes')} GiB cannot hold one layer"
    ),
    NoteCode.LIST_PRICE: _list_price,
    NoteCode.SMALL_NODES: _small_nodes,
    NoteCode.CLOUDS_LEFT_OUT: _clouds_left_out,
    NoteCode.OLD_PRICES: lambda facts: (
        "old prices: "
        + ", ".join(f"{cloud}'s are of {date}" for cloud, date in facts["dates"].items())
    ),
    NoteCode.POWER_PRICE: (
        "power for your own GPUs at ${usd_per_kwh:.4g} a kWh ({source}); --power-price says it"
    ),
    NoteCode.MIXTURES_SEARCHED: (
        "clusters of several GPU types are searched with all GPUs of each type, and with a half, "
        "a quarter and an eighth of one of them; other mixtures are left out"
    ),
    NoteCode.MIXTURES_APART: _apart,
    NoteCode.MIXTURES_OF_LAUNCHABLE: (
        "for money, mixtures are searched as public runtimes launch them; plans whose replicas "
        "differ are not searched"
    ),
    NoteCode.MIXTURES_TOO_MANY_TYPES: (
        "mixed pools are searched over up to {most} types; these are {types}"
    ),
    NoteCode.MIXTURES_REFUSED: "mixed pools are left out: {error}",
    NoteCode.MIXTURES_SKIPPED: (
        "{mixtures} mixtures that may win were not looked at; --exact does"
    ),
    NoteCode.NO_PLAN_YET: "the search was stopped before it found a plan that fits",
    NoteCode.MEMORY_BINDS: _memory_binds,
    NoteCode.RULES_BIND: _rules_bind,
    NoteCode.NONE_AS_ASKED: "no plan is as good as the objective asks for",
    NoteCode.SETTINGS_BIND: _settings_bind,
    NoteCode.CLOSEST_TYPE: "no mixed plan fits, nor any on one type; closest is {gpu}",
    NoteCode.CLOSEST_INSTANCE: "closest is {cloud} {instance}",
    NoteCode.OF_VENDOR: "{vendor}",
    NoteCode.TRY_OTHER_SETTING: lambda facts: f"another {either(facts['settings'])}",
    NoteCode.TRY_FEWER_SETTINGS_OR_RULES: "fewer --set or --rules",
    NoteCode.TRY_WITHOUT_SETTING: _try_without_setting,
    NoteCode.TRY_WITHOUT_SETTINGS: _try_without_settings,
    NoteCode.TRY_OTHER_BATCH_OR_GPUS: "another --global-batch or GPU count",
    NoteCode.TRY_FEWER_SETTINGS: "fewer --set",
    NoteCode.TRY_GPUS: lambda facts: f"{facts['count']} {facts['gpu'] or 'GPUs'}",
    NoteCode.TRY_SEQ_LEN: "--seq-len {seq_len}",
    NoteCode.TRY_DTYPES: lambda facts: (
        f"--set {' --set '.join(facts['settings'])}: {facts['what']}, which change the training's "
        "numbers"
    ),
    NoteCode.TRY_LARGER_GPU: "a GPU with more memory, or a smaller model",
    NoteCode.TRY_MORE_GPUS: "more GPUs: --gpus with a larger count",
    NoteCode.TRY_OTHER_CLOUDS: "clouds with more RAM a node: without --cloud and --region",
    NoteCode.TRY_OTHER_TYPE: "another GPU type beside these",
    NoteCode.AS_IS: "the best plan as things are",
    NoteCode.MORE_NETWORK: lambda facts: f"{facts['factor']:g} x the network{_of_type(facts)}",
    NoteCode.MORE_LINK: "{factor:g} x the link between GPUs",
    NoteCode.MORE_MEMORY_BANDWIDTH: "{factor:g} x the memory bandwidth",
    NoteCode.MORE_COMPUTE: "{factor:g} x the compute",
    NoteCode.MORE_MEMORY: "{factor:g} x the memory",
    NoteCode.OTHER_MICRO_BATCH: "micro-batch {micro_batch}",
    NoteCode.OTHER_COUNT: lambda facts: f"{facts['count']} {facts['gpu'] or 'GPUs'}",
    NoteCode.WITHOUT_TYPE: "no {gpu}",
    NoteCode.THESE_SETTINGS: lambda facts: " ".join(facts["settings"]),
    NoteCode.TYPE_ALONE: "what {gpu} alone could do",
    NoteCode.SETTINGS_FORBIDDEN: _forbidden,
    NoteCode.SETTINGS_IMPOSSIBLE: "{reason}",
    NoteCode.RULES_GONE: ("the rules of {file} are not there any more, so nothing obeys them here"),
    NoteCode.SEARCHED_AS_NARROWLY: lambda facts: (
        "searched again as narrowly as the file's own search: " + " ".join(facts["settings"])
    ),
    NoteCode.MIXED_PRICES: (
        "price moves: of plans that mix GPU types only those on today's frontier are looked at"
    ),
}


def words(note: Note) -> str:
    """A note as a sentence."""
    sentence = SENTENCES[note.code]
    return sentence.format(**note.facts) if isinstance(sentence, str) else sentence(note.facts)


def search_words(what: Note) -> str:
    """What is being searched for, behind `searching`."""
    alone = what.code is NoteCode.TYPE_ALONE
    return words(what) if alone else f"the best plan with {words(what)}"


def all_words(notes: Iterable[Note]) -> tuple[str, ...]:
    return tuple(words(note) for note in notes)


def joined_words(notes: Sequence[Note]) -> str:
    """Reasons as one sentence; headings lead what follows them."""
    text = ""
    for place, note in enumerate(notes):
        last = place == len(notes) - 1
        end = "" if last else ": " if note.code in HEADINGS else "; "
        text += f"{words(note)}{end}"
    return text


# ------------------------------------------------------------------ answers with their sentences


def with_words(priced: PricedPlan) -> PricedPlan:
    """A plan with the sentences of its notes."""
    origin = msgspec.structs.replace(priced.provenance, notes=all_words(priced.provenance.sources))
    warnings = tuple(warning(note) for note in priced.notes)
    return msgspec.structs.replace(priced, provenance=origin, warnings=warnings)


def warning(note: Note) -> str:
    """A note of a plan as a sentence."""
    if note.code is NoteCode.RAM_TOO_SMALL:
        return f"does not fit the RAM of its nodes: {words(note)}"
    return words(note)
