"""`astra export --verify`: what is said where a framework is missing, and where it refuses."""

import subprocess
from typing import Any

import pytest
from tests.support.launch_plans import plain_plan

from astra.export import verify as verifying
from astra.export.targets import TARGETS, export_files
from astra.export.verify import NEEDS, SCRIPTS, FrameworkCheck, verify

FILES = export_files(plain_plan(), "megatron")


def test_every_target_has_a_validator_or_a_reason() -> None:
    assert set(SCRIPTS) == set(NEEDS)
    for target in set(TARGETS) - set(SCRIPTS):
        first, _ = verify(FILES, target, 16)
        assert first.outcome == "not checked" and first.words


@pytest.mark.parametrize("target", SCRIPTS)
def test_a_missing_framework_is_named_with_what_to_install(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_found", lambda _: False)
    first, _ = verify(FILES, target, 16)
    assert first.outcome == "not checked"
    assert f"{NEEDS[target][0]} is not installed" in first.line()
    assert "astra-planner[verify]" in first.line()


def test_the_last_line_of_an_error_is_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "Traceback\n  ...\nValueError: tp 3\n")

    monkeypatch.setattr(verifying, "_found", lambda _: True)
    monkeypatch.setattr(subprocess, "run", run)
    first, _ = verify(FILES, "megatron", 16)
    assert first == FrameworkCheck("megatron", "refused", "ValueError: tp 3")


def test_a_validator_that_hangs_is_not_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("python", 300)

    monkeypatch.setattr(verifying, "_found", lambda _: True)
    monkeypatch.setattr(subprocess, "run", run)
    first, _ = verify(FILES, "megatron", 16)
    assert first.outcome == "not checked" and "300 s" in first.words


def test_a_refusal_names_files_by_their_names_in_the_export(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are checked in a folder of their own, which is gone when a person reads this."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = command[3]
        said = f"FileNotFoundError: '{folder}/args.txt' in {folder}"
        return subprocess.CompletedProcess([], 1, "", said)

    monkeypatch.setattr(verifying, "_found", lambda _: True)
    monkeypatch.setattr(subprocess, "run", run)
    first, _ = verify(FILES, "megatron", 16)
    assert first.words == "FileNotFoundError: 'args.txt' in ."
