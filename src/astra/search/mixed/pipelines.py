"""One search over pipelines that mix types: 1F1B and interleaved, each with the other's limit."""

from collections.abc import Sequence

from astra.search.mixed.interleave import interleave
from astra.search.mixed.solve import MixedFinder
from astra.search.mixed.tally import PipelineFound
from astra.strategy.rules.rule import Rule


def best_pipelines(finder: MixedFinder, built_in: Sequence[Rule]) -> list[PipelineFound]:
    """The best plans found, the very best of the space first (but for `tally.open_s`)."""
    if finder.begin(built_in):
        plain = finder.space.allows("vpp", 1)
        if plain:
            finder.look_first()
        if finder.task.runtime == "megatron":
            interleave(finder)
        if plain:
            finder.look_at_all()
    return sorted(finder.found.values(), key=lambda each: each.step_s)
