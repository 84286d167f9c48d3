"""What is known: models, GPUs, prices, rules and stacks, as their commands' `--json`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from astra.api.catalogue import flops_seq_len, gpus, models, prices, summary_of
from astra.api.inputs import RUNTIMES
from astra.errors import InputError, did_you_mean, shorten
from astra.export.launchers import LAUNCHERS
from astra.export.targets import TARGETS
from astra.hardware.catalogue import find_gpu, is_path
from astra.hardware.stack import find_stack, stack_names
from astra.model.zoo import known_model
from astra.money.options import ORDERS
from astra.report.gpus import gpu_json, gpus_json
from astra.report.models import listing_json, model_json
from astra.report.prices import cheapest_of_each, prices_json
from astra.report.rules import all_variables, rule_json, rules_json, variables_json
from astra.report.stacks import stack_json
from astra.report.words import words as in_words
from astra.search.objectives import OBJECTIVES, RISKS
from astra.strategy.rules.registry import rules_for
from astra.values import word

Said = Mapping[str, str]
PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")


@dataclass(frozen=True, slots=True)
class KnownThings:
    """A listing: the words that narrow it, and its JSON."""

    words: Mapping[str, str]  # with what each means
    answer: Callable[[Said], dict[str, Any]]


def _models(said: Said) -> dict[str, Any]:
    length = flops_seq_len(said["seq_len"]) if "seq_len" in said else None
    if "name" in said:
        return model_json(summary_of(known_model(said["name"]), length))
    return listing_json(models(said.get("filter", ""), seq_len=length))


def _gpus(said: Said) -> dict[str, Any]:
    if "name" not in said:
        return gpus_json(gpus(said.get("filter", "")))
    gpu, note = find_gpu(_plain(said["name"]))
    return gpu_json(gpu, in_words(note) if note else None)


def _prices(said: Said) -> dict[str, Any]:
    spot = _is_true(said.get("spot", "false"), "spot")
    gpu = said.get("gpu")
    wanted = None if gpu is None else _plain(gpu)
    rows = prices(wanted, spot=spot, cloud=said.get("cloud"), region=said.get("region"))
    if gpu is None:
        return prices_json(cheapest_of_each(rows), None)
    _, note = find_gpu(_plain(gpu))
    return prices_json(rows, in_words(note) if note else None)


def _rules(said: Said) -> dict[str, Any]:
    runtime = word(said.get("runtime", "megatron"), "--runtime", RUNTIMES)
    if _is_true(said.get("names", "false"), "names"):
        return variables_json(all_variables())
    rules = rules_for(runtime)
    if "name" not in said:
        return rules_json(rules, runtime)
    known = {rule.name: rule for rule in rules}
    if said["name"] not in known:
        hint = did_you_mean(said["name"], known)
        raise InputError(f"name {shorten(said['name'])}: no rule of {runtime}. {hint}".rstrip())
    return rule_json(known[said["name"]])


def _stacks(said: Said) -> dict[str, Any]:
    if "name" in said:
        return stack_json(find_stack(said["name"]))
    return {"stacks": [stack_json(find_stack(name)) for name in stack_names()]}


def _choices(said: Said) -> dict[str, Any]:  # noqa: ARG001 - nothing narrows it
    return {
        "objective": list(OBJECTIVES),
        "order": list(ORDERS),
        "precision": list(PRECISIONS),
        "risk": list(RISKS),
        "runtime": list(RUNTIMES),
        "stack": stack_names(),
        "launcher": list(LAUNCHERS),
        "to": [
            {"name": name, "called": target.name, "runtime": target.runtime}
            for name, target in TARGETS.items()
        ],
    }


LISTINGS = {
    "models": KnownThings(
        {
            "name": "one model in full",
            "filter": "with this in name, family or Hugging Face id",
            "seq_len": "tokens that FLOPs are counted at",
        },
        _models,
    ),
    "gpus": KnownThings({"name": "one GPU in full", "filter": "with these words"}, _gpus),
    "prices": KnownThings(
        {
            "gpu": "every offer of one",
            "cloud": "only these clouds",
            "region": "only these regions",
            "spot": "true: spot prices too",
        },
        _prices,
    ),
    "rules": KnownThings(
        {
            "runtime": ", ".join(RUNTIMES),
            "name": "one rule in full",
            "names": "true: the names that rules of one's own may use",
        },
        _rules,
    ),
    "choices": KnownThings({}, _choices),
    "stacks": KnownThings({"name": "one stack in full"}, _stacks),
}


def _plain(name: str) -> str:
    """A GPU's name that is no path."""
    if is_path(name):
        raise InputError(f"{shorten(name)}: no file is read here; name a GPU of the catalogue.")
    return name


def _is_true(said: str, name: str) -> bool:
    return word(said, name, ("true", "false")) == "true"
