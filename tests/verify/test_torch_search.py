"""torchtitan, accelerate and DeepSpeed accept every plan of the search that is exported to them."""

import dataclasses
import sys
import types
from collections import Counter
from typing import Any

import pytest
from tests.support.frameworks import needs

needs("torch", "torchtitan", "accelerate", "deepspeed")

from tests.support import accelerate_oracle, deepspeed_oracle, titan_oracle  # noqa: E402
from tests.support.torch_plans import random_torch_plan  # noqa: E402
from tests.support.uniform_plans import (  # noqa: E402
    type_of_rank,
    types_of_replicas,
    uniform_plan,
)
from tests.verify.test_deepspeed_rules import judged  # noqa: E402

import astra  # noqa: E402
from astra.export import accelerate  # noqa: E402
from astra.export.targets import export_files, refusal  # noqa: E402
from astra.export.titan_models import FLAVOURS, MAX_POSITIONS  # noqa: E402
from astra.export.yaml_text import yaml_text  # noqa: E402
from astra.hardware.gpus_option import parse_gpus  # noqa: E402
from astra.model.parameters import parameters  # noqa: E402
from astra.model.zoo import find_model  # noqa: E402
from astra.strategy.complete import PlanSettings, complete  # noqa: E402
from astra.strategy.plan import Plan, Runtime  # noqa: E402
from astra.strategy.rules.registry import broken_rules  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, not of ours
# Model and sequence length: all of them torchtitan's.
MODELS = {
    "llama-3-8b": 8192,
    "llama-3-70b": 4096,
    "llama-3.1-405b": 8192,  # 126 layers
    "llama-3.2-1b": 4096,  # tied embeddings
    "llama-2-13b": 4096,  # 40 heads, built of Llama 3's layers
    "qwen3-4b": 4096,  # tied, heads wider than hidden
    "qwen3-32b": 4096,
    "qwen3-30b-a3b": 4096,  # MoE, 128 experts, 4 KV heads
    "deepseek-v2-lite": 4096,  # MLA, 27 layers, the first one dense
    "moonlight-16b-a3b": 4096,
    "gpt-oss-20b": 4096,  # MoE with biases, sinks, windows
    "yi-6b": 4096,
}
SIZES = (8, 64, 256, 1024)
TOP = 4
FP8 = {"tensorwise": "Float8", "mxfp8": "MXFP8"}


def searched(model: str, gpus: int, runtime: Runtime) -> list[Plan]:
    found = astra.plan(
        model,
        gpus=f"h100:{gpus}",
        global_batch=2 * gpus,
        seq_len=MODELS[model],
        runtime=runtime,
        top=TOP,
    )
    return [priced.plan for priced in found.plans]


@pytest.mark.parametrize("gpus", SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_torchtitan_accepts_the_best_plans_as_module_and_as_flags(model: str, gpus: int) -> None:
    for place, plan in enumerate(searched(model, gpus, "fsdp")):
        assert refusal(plan, "torchtitan") is None
        files = export_files(plan, "torchtitan")
        text, world = files["astra_plan.py"], sum(plan.gpus.values())
        made = titan_oracle.read_module(text).plan
        assert titan_oracle.verdict(made, world, build=False) is None, plan.summary()
        if place == 0:
            words = files["args.txt"].split()
            flagged = titan_oracle.parse(text, words)
            assert flagged.training == made().training
            assert flagged.parallelism == made().parallelism
            assert flagged.activation_checkpoint == made().activation_checkpoint
            assert flagged.compile == made().compile
            named = titan_oracle.parse(text, ["--module", "astra_plan", "--config", "plan"])
            assert named.training == made().training
            assert named.parallelism == made().parallelism


@pytest.mark.parametrize("gpus", SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_accelerate_accepts_the_best_plans(model: str, gpus: int) -> None:
    for plan in searched(model, gpus, "fsdp"):
        if refusal(plan, "accelerate") is None:
            files = export_files(plan, "accelerate")
            refused = accelerate_oracle.verdict(files["accelerate.yaml"], sum(plan.gpus.values()))
            assert refused is None, f"{plan.summary()}: {refused}"
            args = accelerate_oracle.read(files["accelerate.yaml"])
            assert int(args.num_processes) == sum(plan.gpus.values())


@pytest.mark.parametrize("gpus", SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_deepspeed_accepts_the_best_plans(model: str, gpus: int) -> None:
    for plan in searched(model, gpus, "deepspeed"):
        assert refusal(plan, "deepspeed") is None
        assert judged(plan) is None, plan.summary()


# Model, GPUs of two types and settings of one cut over both.
UNIFORM: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3-8b", "h100:48,h200:16", {}),
    ("llama-3-70b", "h100:56,h200:8", {"tp": 4, "pp": 4}),
    ("llama-2-13b", "a100-80g:24,h100:40", {"pp": 4}),
    ("qwen3-4b", "a100-80g:16,h100:32,h200:16", {"shard_group": 16}),
]


def lies_as_planned(plan: Plan, groups: list[list[int]]) -> bool:
    """Whether every stage of every replica is on the GPU type that the plan says."""
    gpu, ranks = type_of_rank(plan), plan.pipelines[0].segments[0].tp * plan.cp
    found = [tuple(gpu[rank] for rank in group) for group in groups]
    return found == [types for types in types_of_replicas(plan) for _ in range(ranks)]


@pytest.mark.parametrize(("model", "gpus", "settings"), UNIFORM)
def test_torchtitan_takes_one_cut_over_several_types_with_its_ranks_in_blocks(
    model: str, gpus: str, settings: dict[str, Any]
) -> None:
    plan = uniform_plan(gpus, model, "fsdp", **settings)
    assert len(plan.pipelines) > 1 and refusal(plan, "torchtitan") is None
    made = titan_oracle.read_module(export_files(plan, "torchtitan")["astra_plan.py"]).plan
    assert titan_oracle.verdict(made, 64, build=False) is None
    assert lies_as_planned(plan, titan_oracle.pipeline_ranks(made(), 64))


@pytest.mark.parametrize(("model", "gpus", "settings"), UNIFORM)
def test_accelerate_and_deepspeed_take_one_cut_over_several_types(
    model: str, gpus: str, settings: dict[str, Any]
) -> None:
    plain = uniform_plan(gpus, model, "fsdp", **settings | {"tp": 1, "pp": 1})
    text = export_files(plain, "accelerate")["accelerate.yaml"]
    assert accelerate_oracle.verdict(text, 64) is None
    staged = {name: degree for name, degree in settings.items() if name == "pp"}
    plan = uniform_plan(gpus, model, "deepspeed", **staged)
    assert len(plan.pipelines) > 1 and refusal(plan, "deepspeed") is None
    assert judged(plan) is None
    assert lies_as_planned(plan, deepspeed_oracle.pipeline_ranks(plan.pp, plan.dp))


def test_accelerate_and_our_refusals_agree_on_random_plans() -> None:
    """On the sizes that accelerate itself checks; what it has no words for is not written."""
    seen: Counter[str] = Counter()
    names = ("llama-3-8b", "qwen2.5-0.5b", "gpt2-xl")
    for seed in range(4_000):
        plan = random_torch_plan(seed, find_model(names[seed % 3]), "fsdp")
        sizes = "replicas that no"
        refused = [part for part in accelerate.refusals(plan) if sizes not in part]
        unlike = {rule.name for rule in broken_rules(plan)}
        checked = {"shard-group-holds-cp", "dp-fits-shard-group", "shard-group-divides"}
        judges = ("tensor parallelism without", "sequence parallelism")
        if unlike - checked or [part for part in refused if not part.startswith(judges)]:
            continue
        if (unlike or plan.pipelines[0].segments[0].tp > 1) and not accelerate.is_fsdp(plan):
            continue  # nothing of it is written
        ours = bool(unlike) or len(refused) < len(accelerate.refusals(plan))
        world = sum(plan.gpus.values())
        theirs = accelerate_oracle.verdict(yaml_text(accelerate.config(plan)), world)
        assert ours == bool(theirs), f"{seed} {plan.summary()}: {ours} against {theirs}"
        seen["illegal" if ours else "legal"] += 1
    assert seen["legal"] >= 200 and seen["illegal"] >= 20, seen


@pytest.mark.parametrize("name", sorted(FLAVOURS))
def test_torchtitan_builds_the_network_we_mean(name: str) -> None:
    """Its own network, built on torch's meta device, has the parameters that we count."""
    import torch

    model = find_model(name)
    cluster, _ = parse_gpus("h100:8")
    plan = complete(PlanSettings(global_batch=8, seq_len=2048), model, cluster, "fsdp").plan
    text = export_files(plan, "torchtitan")["astra_plan.py"]
    titan_oracle.titan()
    spec = titan_oracle.read_module(text).model_spec()
    assert spec.model.max_seq_len == MAX_POSITIONS[FLAVOURS[name][0]]
    with torch.device("meta"):
        built = spec.model.build()
    count = sum(weight.numel() for weight in {id(w): w for w in built.parameters()}.values())
    if model.moe and model.moe.router_bias and not model.mlp_bias:  # a buffer in torchtitan
        rows = dict(built.named_buffers())
        count += sum(rows[key].numel() for key in rows if key.endswith("expert_bias_E"))
    assert count == parameters(plan.model).total


EIGHT = [(name, "tensorwise") for name in ("llama-3-8b", "yi-6b", "qwen3-4b", "gpt-oss-20b")]
EIGHT += [(name, recipe) for name in ("deepseek-v2-lite", "qwen3-30b-a3b") for recipe in FP8]


@pytest.mark.parametrize(("name", "recipe"), [*EIGHT, ("llama-3-70b", "mxfp8")])
def test_torchtitan_converts_to_fp8_what_the_plan_computes_in_it(name: str, recipe: str) -> None:
    """Its converters change all layers and experts, but neither the head nor the router."""
    model = find_model(name)
    cluster, _ = parse_gpus("b200:16")
    said: dict[str, Any] = {"precision": "fp8", "fp8_recipe": recipe, "ep": 8 if model.moe else 1}
    plan = complete(
        PlanSettings(global_batch=16, seq_len=2048, **said), model, cluster, "fsdp"
    ).plan
    files = export_files(plan, "torchtitan")
    titan_oracle.titan()
    from torchtitan.models.common.linear import Linear
    from torchtitan.models.common.moe import GroupedExperts

    text = files["astra_plan.py"]
    assert titan_oracle.verdict(titan_oracle.read_module(text).plan, 16, build=False) is None
    named = titan_oracle.parse(text, ["--module", "astra_plan", "--config", "plan"])
    flagged = titan_oracle.parse(text, files["args.txt"].split())
    for config in (named, flagged):
        shape = config.model_spec.model
        plain = {
            fqn.rpartition(".")[2]
            for fqn, kind, *_ in shape.traverse(Linear.Config)
            if type(kind) is Linear.Config
        }
        assert plain == ({"lm_head", "gate"} if model.moe else {"lm_head"})
        for _, kind, *_ in shape.traverse(GroupedExperts.Config):
            assert type(kind)._owner.__name__.startswith(FP8[recipe])


@pytest.mark.parametrize("pp", [1, 4])
def test_the_module_speaks_of_tokens_where_torchtitan_does(
    pp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later than 0.3: its classes here, with the names that its source has since."""
    titan_oracle.titan()
    from torchtitan import config
    from torchtitan.hf_datasets import text_datasets
    from torchtitan.trainer import Trainer

    training = {"local_batch_size", "global_batch_size", "seq_len"}
    tokens = ("num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step")
    for name, gone, new in (
        ("TrainingConfig", training, (*tokens, "max_context_length")),
        ("ParallelismConfig", {"pipeline_parallel_microbatch_size"}, ("num_pp_microbatches",)),
    ):
        kept = [f.name for f in dataclasses.fields(getattr(config, name)) if f.name not in gone]
        made = dataclasses.make_dataclass(
            name, [(field, object, None) for field in (*kept, *new)], kw_only=True
        )
        monkeypatch.setattr(config, name, made)
    data = types.ModuleType("torchtitan.components.data")
    data.ConcatThenSplitPackingConfig = dict  # type: ignore[attr-defined]
    data.GrainDataLoader = types.SimpleNamespace(Config=dict)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, data.__name__, data)
    monkeypatch.setattr(Trainer.Config, "__post_init__", lambda _: None)  # asks for the old names
    monkeypatch.delattr(text_datasets, "HuggingFaceTextDataLoader")
    monkeypatch.setattr(text_datasets, "DATASETS", {"c4_test": "c4"}, raising=False)
    cluster, _ = parse_gpus("h100:16")
    settings = PlanSettings(global_batch=64, seq_len=2048, pp=pp, micro_batch=2)
    plan = complete(settings, find_model("llama-3-8b"), cluster, "fsdp").plan
    job = titan_oracle.read_module(export_files(plan, "torchtitan")["astra_plan.py"]).plan()
    assert job.training.num_tokens_per_microbatch_per_dp_rank == 2 * 2048
    assert job.training.num_tokens_per_train_step == 64 * 2048
    assert job.training.max_context_length == 2048
    rounds = 64 // (2 * plan.dp)
    assert job.parallelism.num_pp_microbatches == (rounds if pp > 1 else None)
    assert job.dataloader == {"dataset": {"dataset": "c4"}}
