"""What is recommended is accepted by the framework's own code: over the zoo, small and large pools,
two GPU types, and pools of several types.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.frameworks import needs

needs("torch", "triton", "hydra", "six", "flag_scale", "megatron.core", "megatron.training")

from tests.support.flagscale_oracle import Judge  # noqa: E402
from tests.support.recommended import (  # noqa: E402
    MIXED,
    ONE_TYPE,
    SAMPLE,
    Question,
    outcome_of,
)

WHOLE = os.environ.get("ASTRA_VERIFY_ALL") == "1"  # minutes instead of half of one


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    found = Judge()
    yield found
    found.process.communicate(timeout=60)
    assert found.process.returncode == 0


@pytest.mark.parametrize("question", [*ONE_TYPE, *MIXED] if WHOLE else SAMPLE, ids=str)
def test_the_recommended_plan_is_accepted(question: Question, judge: Judge, tmp_path: Path) -> None:
    outcome = outcome_of(question, judge, tmp_path)
    assert outcome.summary, "nothing fits"
    assert outcome.refusals == (), outcome.summary
    assert outcome.checked_by


def test_the_sample_has_both_types_and_mixtures() -> None:
    assert len(ONE_TYPE) == 12 * 4 * 2
    assert {question.gpus.partition(":")[0] for question in SAMPLE} == {"h100", "gb200"}
    assert sum("," in question.gpus for question in SAMPLE) == 2
