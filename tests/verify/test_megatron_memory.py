"""States of the fullest stage against Megatron-LM's own estimate of weights and optimizer.

Its estimate is right where all stages hold alike layers, no context parallelism splits the
batch, keys and values are cut no finer than their heads, and there are no biases, learned
positions or multi-token prediction. One thing it simplifies there too: the final norm, which
lies on the last stage, is shared out over all of them.
"""

import contextlib
import io
import itertools
import warnings
from typing import Any

import pytest
from tests.support.frameworks import needs

needs("torch", "triton", "megatron.core", "megatron.training")

from tests.support.megatron_oracle import _environment, megatron, verdict  # noqa: E402

from astra import predict  # noqa: E402
from astra.cost.result import PricedPlan  # noqa: E402
from astra.export.megatron import architecture, arguments, environment  # noqa: E402
from astra.model.parameters import norm_width  # noqa: E402
from astra.model.zoo import zoo_model  # noqa: E402
from astra.strategy.plan import Plan  # noqa: E402

MODELS = (
    "llama-3-8b",  # grouped queries
    "llama-3.2-1b",  # tied embeddings
    "llama-2-7b",  # one key-value head for each query head
    "llama-3-70b",
    "mixtral-8x7b",  # experts in every layer
)


def validated(plan: Plan) -> Any:
    """The plan's command line as Megatron-LM's parser and validation leave it."""
    words = [word for argument in arguments(plan) for word in argument]
    env, world = environment(plan), sum(plan.gpus.values())
    refused = verdict(words, env, world, architecture(plan))
    assert refused is None, refused
    framework = megatron()
    silent = io.StringIO()
    with (
        _environment({**env, "WORLD_SIZE": str(world), "RANK": "0"}),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
    ):
        warnings.simplefilter("ignore")
        parsed = framework["parser"].parse_args(words)
        parsed._is_global_batch_size_explicitly_specified = True
        parsed.rank, parsed.world_size = 0, world
        framework["arguments"].validate_args(parsed)
    return parsed


def estimate_bytes(plan: Plan) -> float:
    """Megatron-LM's weights, gradients and optimizer states of the most loaded stage."""
    parsed = validated(plan)  # first, since it imports the framework as its shims need it
    from megatron.training.theoretical_memory_usage import compute_weight_and_optimizer_memory
    from megatron.training.vocab_utils import calculate_padded_vocab_size

    parsed.padded_vocab_size = calculate_padded_vocab_size(
        parsed.vocab_size,
        parsed.make_vocab_size_divisible_by,
        parsed.tensor_model_parallel_size,
        logging_enabled=False,
    )
    return float(compute_weight_and_optimizer_memory(parsed))


def states_bytes(priced: PricedPlan) -> list[float]:
    """Ours, of every stage."""
    return [
        row.weights_bytes + row.gradients_bytes + row.optimizer_bytes
        for row in priced.memory.stages
    ]


def compare(name: str, **settings: Any) -> None:
    """Our first stage and Megatron-LM's most loaded one, the final norm counted its way."""
    pp = settings["pp"]
    even = [zoo_model(name).layers // pp] * pp
    found = predict(name, global_batch=256, seq_len=2048, layers_per_stage=even, **settings)
    plan = found.plan
    final = norm_width(plan.model) * _bytes_of_a_norm(plan)
    first = states_bytes(found)[0] - (final if plan.pp == 1 else 0)
    assert first + final / plan.pp == pytest.approx(estimate_bytes(plan), rel=1e-9), settings


@pytest.mark.parametrize("name", MODELS)
def test_states_are_megatrons_own_estimate(name: str) -> None:
    degrees = itertools.product((1, 2, 4, 8), (1, 2, 4), (1, 2, 8), ("none", "optimizer"))
    for tp, pp, dp, sharding in degrees:
        compare(name, gpus=f"h100:{tp * pp * dp}", tp=tp, pp=pp, sharding=sharding)


def test_states_of_experts_are_megatrons_own_estimate() -> None:
    """Cut by expert and expert tensor parallelism, sharded over the ranks that hold the same."""
    for tp, pp, ep, etp in itertools.product((1, 2, 4), (1, 4), (2, 8), (1, 2)):
        for sharding in ("none", "optimizer"):
            fields = {"tp": tp, "pp": pp, "ep": ep, "etp": etp, "sharding": sharding}
            compare("mixtral-8x7b", gpus=f"h100:{16 * pp}", **fields)


def _bytes_of_a_norm(plan: Plan) -> float:
    copies = plan.dp * plan.cp
    return 18 if plan.sharding == "none" else 6 + 12 / copies


def test_an_uneven_pipeline_is_more_than_the_mean_that_megatron_takes() -> None:
    """Where layers differ, the mean is too low for the stage that has the most."""
    fields: dict[str, Any] = {"gpus": "h100:8", "tp": 2, "global_batch": 64, "seq_len": 2048}
    even = predict("llama-3-8b", layers_per_stage=(8, 8, 8, 8), **fields)
    uneven = predict("llama-3-8b", layers_per_stage=(11, 8, 8, 5), **fields)
    assert estimate_bytes(uneven.plan) == pytest.approx(estimate_bytes(even.plan))
    assert max(states_bytes(uneven)) > 1.2 * estimate_bytes(uneven.plan)
