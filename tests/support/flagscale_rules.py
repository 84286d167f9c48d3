"""FlagScale's rules on a task and its hosts, written from its documents and sources
(`flagscale/train/arguments.py`, `train/hetero/parallel_context.py`, `runner/utils.py` of 0.8.0).

Knows nothing of plans: it reads what FlagScale would read.
"""

import re
from collections import Counter
from typing import Any

HOST = re.compile(r"^(\S+)\s+slots=(\d+)(?:\s+type=(\S+))?$")


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """All settings by name: FlagScale forgets the sections."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value)
        else:
            found[key] = value
    return found


def hosts_in(text: str) -> list[tuple[str, int, str | None]]:
    """Name, GPUs and device type of every host."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            match = HOST.match(line.strip())
            assert match, f"no host: {line}"
            found.append((match[1], int(match[2]), match[3]))
    return found


def broken(task: dict[str, Any], hostfile: str) -> list[str]:
    """Names of the rules that a task with these hosts breaks."""
    settings, hosts = flat(task), hosts_in(hostfile)
    rules = {
        "hosts-have-names-of-their-own": len({name for name, _, _ in hosts}) == len(hosts),
        "all-hosts-typed-or-none": len({kind is None for _, _, kind in hosts}) == 1,
    }
    if not settings.get("enable_hetero"):
        rules |= _plain(settings, sum(slots for _, slots, _ in hosts))
        return [name for name, held in rules.items() if not held]
    numbers, types = settings["hetero_process_meshes"], settings["hetero_device_types"]
    if len(numbers) % 5:
        return ["five-numbers-a-mesh"]
    if len(types) != len(numbers) // 5:
        return ["a-type-a-mesh"]
    tp, cp, ep, dp, pp = (numbers[place::5] for place in range(5))
    rules |= _worlds(tp, cp, dp, pp, types, hosts)
    rules |= _batch(settings, dp)
    rules |= _pipeline(settings, pp)
    rules |= _ends(settings, tp, dp)
    rules |= _experts(settings, tp, cp, ep, dp)
    rules |= _recompute(settings, sum(pp), dp)
    rules["no-context-parallelism"] = set(cp) == {1}
    rules["one-optimizer"] = settings.get("num_distributed_optimizer_instances", 1) == 1
    rules["current-type-is-one-of-them"] = settings["hetero_current_device_type"] in types
    return [name for name, held in rules.items() if not held]


def _plain(settings: dict[str, Any], world: int) -> dict[str, bool]:
    size = 1
    for name in ("tensor_model", "pipeline_model", "context"):
        size *= settings[f"{name}_parallel_size"]
    copies = world // size
    return {
        "world-divides": world % size == 0 and copies > 0,
        "batch-divides": settings["global_batch_size"] % (settings["micro_batch_size"] * copies)
        == 0,
        "no-meshes": not any(name.startswith("hetero_") for name in settings),
    }


def _worlds(
    tp: list[int],
    cp: list[int],
    dp: list[int],
    pp: list[int],
    types: list[str],
    hosts: list[tuple[str, int, str | None]],
) -> dict[str, bool]:
    """The GPUs of every type are those of its hosts. ep is no factor."""
    wanted: Counter[str] = Counter()
    for place, kind in enumerate(types):
        wanted[kind] += tp[place] * cp[place] * dp[place] * pp[place]
    given: Counter[str] = Counter()
    for _, slots, own in hosts:
        given[own or types[0]] += slots
    # Ranks are sorted by the first place of their type, so a type lies in one run of meshes.
    runs = [kind for place, kind in enumerate(types) if place == 0 or types[place - 1] != kind]
    return {"world-is-the-sum": wanted == given, "a-type-in-one-run": len(set(runs)) == len(runs)}


def _batch(settings: dict[str, Any], dp: list[int]) -> dict[str, bool]:
    samples = dp[0] * settings["micro_batch_size"]
    return {
        "first-mesh-feeds-all": all(samples % copies == 0 for copies in dp),
        "batch-divides": settings["global_batch_size"] % samples == 0,
    }


def _pipeline(settings: dict[str, Any], pp: list[int]) -> dict[str, bool]:
    split = settings["hetero_pipeline_layer_split"]
    chunked = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
    return {
        "stages-are-the-sum": settings["pipeline_model_parallel_size"] == sum(pp),
        "a-split-a-stage": len(split) == settings["pipeline_model_parallel_size"],
        "layers-add-up": sum(split) == settings["num_layers"],
        "no-virtual-stages": not any(settings.get(name) for name in chunked),
        "one-way-to-cut": "pipeline_model_parallel_layout" not in settings,
        "no-stage-for-the-embedding": not settings.get("standalone_embedding_stage"),
    }


def _ends(settings: dict[str, Any], tp: list[int], dp: list[int]) -> dict[str, bool]:
    tied = not settings.get("untie_embeddings_and_output_weights")
    if not tied and not settings.get("mtp_num_layers"):
        return {}
    held = {"ends-share-tp": tp[0] == tp[-1]}
    if dp[0] != dp[-1] and settings.get("use_distributed_optimizer"):
        held["ends-divide"] = dp[0] % dp[-1] == 0 or dp[-1] % dp[0] == 0
        held["ends-reduce-in-part"] = bool(settings.get("use_partial_reduce_for_shared_embedding"))
    return held


def _experts(
    settings: dict[str, Any], tp: list[int], cp: list[int], ep: list[int], dp: list[int]
) -> dict[str, bool]:
    experts = settings.get("num_experts")
    if experts is None:
        return {"no-experts-to-share-out": set(ep) == {1}}
    cut = settings.get("expert_tensor_parallel_size_per_process_mesh")
    if cut is None or len(cut) != len(tp):
        return {"an-expert-cut-a-mesh": False}
    rows = zip(tp, cp, ep, dp, cut, strict=True)
    return {
        "experts-share-the-mesh": all(t * c * d % (e * x) == 0 for t, c, e, d, x in rows),
        "experts-divide": all(experts % size == 0 for size in ep),
    }


def _recompute(settings: dict[str, Any], stages: int, dp: list[int]) -> dict[str, bool]:
    count = settings["global_batch_size"] // (settings["micro_batch_size"] * dp[0])
    held = {}
    lists = ("granularity", "method", "num_layers")
    rows = {name: settings.get(f"recompute_{name}_per_stage_micro_batch") for name in lists}
    for name, own in rows.items():
        if own is None:
            continue
        held[f"{name}-of-every-stage"] = sum(row[0] for row in own) == stages
        held[f"{name}-of-every-micro-batch"] = all(sum(row[1::2]) == count for row in own)
        if name != "num_layers":
            held[f"{name}-is-a-flag"] = all(set(row[2::2]) <= {0, 1} for row in own)
    if rows["granularity"] is not None:
        held["stages-recompute-in-full"] = settings.get("recompute_granularity") == "full"
        held["stages-recompute-by-a-method"] = settings.get("recompute_method") is not None
    if settings.get("recompute_granularity") == "selective":
        held["selective-has-no-method"] = "recompute_method" not in settings
    return held
