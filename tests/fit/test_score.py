"""Score, regret and rank correlation, by hand and against the plain definition."""

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.fit.score import (
    capped_error,
    error_fraction,
    is_timed,
    kendall_tau,
    pair_spread,
    regret_fraction,
    score,
)

SMALL_NUMBERS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40)


def plain_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Tau-b, pair by pair."""
    alike = tied_first = tied_second = 0
    pairs = list(combinations(range(len(first)), 2))
    for i, j in pairs:
        a = (first[i] > first[j]) - (first[i] < first[j])
        b = (second[i] > second[j]) - (second[i] < second[j])
        alike += a * b
        tied_first += a == 0
        tied_second += b == 0
    scale = math.sqrt((len(pairs) - tied_first) * (len(pairs) - tied_second))
    return alike / scale if scale else None


@given(SMALL_NUMBERS)
def test_kendalls_tau_is_that_of_the_plain_definition(pairs: list[tuple[int, int]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    ours, plain = kendall_tau(first, second), plain_tau(first, second)
    assert (ours is None) == (plain is None)
    assert ours is None or ours == pytest.approx(plain, abs=1e-12)


def test_tau_of_equal_and_of_reversed_rankings() -> None:
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall_tau([1, 1, 1], [1, 2, 3]) is None


def test_errors_are_signed_and_the_score_treats_both_signs_alike() -> None:
    assert error_fraction(11, 10) == pytest.approx(0.1)
    assert error_fraction(9, 10) == pytest.approx(-0.1)
    assert capped_error(20 / 1.25, 20) == pytest.approx(0.25) == capped_error(25, 20)
    assert capped_error(1, 1000) == capped_error(1000, 1) == pytest.approx(1.0)


def test_the_score_is_a_mean_over_families_with_small_ones_pooled() -> None:
    pairs = {
        "large": [(1.2, 1.0)] * 30,  # 0.2
        "small-a": [(1.5, 1.0)] * 3,  # 0.5
        "small-b": [(1.0, 1.1)] * 1,  # 0.1
        "megatron-ci-tiny": [(9.0, 1.0)] * 50,
        "empty": [],
    }
    assert score(pairs) == pytest.approx((0.2 + (3 * 0.5 + 0.1) / 4) / 2)
    assert score({}) is None and score({"megatron-ci": [(1.0, 2.0)]}) is None
    assert not is_timed("megatron-ci-tiny") and is_timed("megatron-bridge")


def test_regret_is_our_picks_measured_time_over_the_best() -> None:
    assert regret_fraction([3, 1, 2], [10, 12, 11]) == pytest.approx(0.2)
    assert regret_fraction([1, 2, 3], [10, 12, 11]) == 0
    assert regret_fraction([1, 1, 3], [10, 12, 11]) == pytest.approx(0.1)


def test_a_common_error_does_not_keep_layouts_from_being_told_apart() -> None:
    """All 30 % too long, but in the right ratio: off by nothing."""
    assert pair_spread({("a",): [0.3, 0.3, 0.3]}) == (0.0, 3)
    spread, pairs = pair_spread({("a", "x"): [0.0, 0.1], ("b", "y"): [0.5] * 5})
    assert pairs == 11 and spread == pytest.approx(math.expm1(0.1))  # a family counts once
    several: dict[tuple[str, ...], list[float]] = {
        ("a", "x"): [0.0, 0.1],
        ("b", "y"): [0.5] * 5,
        ("b", "z"): [0.5] * 3,
    }
    assert pair_spread(several, share=0.5)[0] == 0.0
    assert pair_spread(several, share=0.51)[0] == pytest.approx(math.expm1(0.1))
