"""Cases that share a test fail as tests of their own would."""

import inspect

import pytest
from tests.support.cases import each_case


def test_every_case_runs_and_those_that_fail_are_named() -> None:
    seen: list[tuple[int, int, str]] = []

    @each_case("first, second", [(1, 1), (2, 3), (4, 4), (5, 6)])
    def equal(fixture: str, first: int, second: int) -> None:
        seen.append((first, second, fixture))
        assert first == second

    assert list(inspect.signature(equal).parameters) == ["fixture"]
    with pytest.raises(ExceptionGroup, match="2 of 4 cases") as failed:
        equal(fixture="given")
    assert seen == [(1, 1, "given"), (2, 3, "given"), (4, 4, "given"), (5, 6, "given")]
    notes = [note for error in failed.value.exceptions for note in error.__notes__]
    assert notes == ["the case: first = 2, second = 3", "the case: first = 5, second = 6"]


def test_an_error_that_was_expected_and_did_not_come_fails_the_case() -> None:
    @each_case("text", ["x", "1"])
    def no_number(text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text)

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE") as failed:
        no_number()
    assert failed.value.__notes__ == ["the case: text = '1'"]


def test_products_of_cases_are_cases_and_none_at_all_is_a_mistake() -> None:
    seen: list[tuple[int, str]] = []

    @each_case("number", [1, 2])
    @each_case("letter", "ab")
    def record(number: int, letter: str) -> None:
        seen.append((number, letter))

    record()
    assert seen == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    with pytest.raises(AssertionError, match="no case of number"):
        each_case("number", [])
