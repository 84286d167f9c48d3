"""Many cases that take next to no time, as one test."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., None]
MAX_NOTE = 400  # characters of a case that are told


def each_case(names: str, cases: Iterable[Any]) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, but one test: a test of its own costs more than such a case.

    Every case runs, with the same fixtures; those that fail are told with their values.
    """
    arguments, listed = [name.strip() for name in names.split(",")], list(cases)
    assert listed, f"no case of {names}"

    def decorate(test: Test) -> Test:
        own = inspect.signature(test)
        fixtures = [each for name, each in own.parameters.items() if name not in arguments]

        @wraps(test)
        def every_case(**given: Any) -> None:
            failed: list[BaseException] = []
            for case in listed:
                values = case if len(arguments) > 1 else (case,)
                named = dict(zip(arguments, values, strict=True))
                try:
                    test(**given, **named)
                except (Exception, pytest.fail.Exception) as error:
                    said = ", ".join(f"{name} = {value!r}" for name, value in named.items())
                    error.add_note(f"the case: {said[:MAX_NOTE]}")
                    failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(listed)} cases", failed)

        every_case.__signature__ = own.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return every_case

    return decorate
