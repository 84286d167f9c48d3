"""Every file in `examples/` runs, and what it prints is what was saved.

`NAME.sh` is a few commands, `NAME.txt` what they print. After a change of what is printed,
`ASTRA_SAVE_EXAMPLES=1 python -m pytest tests/test_examples.py` saves it anew; read the difference.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.tiers import slow_after

from astra.cli.main import run

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.sh"), key=lambda path: ("money" in path.stem, path.stem))
EXTEND = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
SAVE = os.environ.get("ASTRA_SAVE_EXAMPLES") == "1"

# How each other file is used: the command that reads it.
FILES = {
    "my-model.toml": ["models", "examples/my-model.toml", "--json"],
    "own-runs.csv": ["calibrate", "examples/own-runs.csv", "--name", "a100-2022", "--json"],
    "my-gpu.toml": ["gpus", "examples/my-gpu.toml", "--json"],
    "my-cluster.toml": [
        "predict",
        "examples/my-model.toml",
        "--cluster",
        "examples/my-cluster.toml",
        "--pp",
        "3",
        "--global-batch",
        "96",
        "--json",
    ],
}


def printed(script: Path) -> str:
    """What a script prints, from the root of the repository, with this environment's `astra`."""
    programs = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-euo", "pipefail", str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "COLUMNS": "100",
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("script", slow_after(3, SCRIPTS), ids=lambda path: path.stem)
def test_a_script_prints_what_was_saved(script: Path) -> None:
    saved = script.with_suffix(".txt")
    output = printed(script)
    if SAVE:
        saved.write_text(output, encoding="utf-8")
    assert output == saved.read_text(encoding="utf-8")


def test_there_are_scripts_and_each_says_what_it_shows() -> None:
    assert len(SCRIPTS) >= 3
    for script in SCRIPTS:
        lines = script.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# ") and any(line.startswith("astra ") for line in lines)


@pytest.mark.parametrize("name", slow_after(3, sorted(FILES)))
def test_a_file_is_read_by_its_command(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HOME", str(tmp_path))  # where a calibrated stack is kept
    assert run(FILES[name]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["name" if "name" in answer else "summary"]


def test_the_cluster_of_the_examples_is_used_as_a_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run(FILES["my-cluster.toml"])
    assert json.loads(capsys.readouterr().out)["gpus"] == {"H100-80GB-SXM": 64, "workhorse": 32}


def test_no_example_is_left_unused() -> None:
    outputs = {script.with_suffix(".txt").name for script in SCRIPTS}
    used = {script.name for script in SCRIPTS} | outputs | set(FILES)
    used |= {"tour.ipynb"}  # run by test_tour.py
    used |= set(re.findall(r"\]\(\.\./examples/(?:[^)]*/)?([^)/]+)\)", EXTEND))  # by test_extend.py
    present = {path.name for path in EXAMPLES.rglob("*") if path.is_file()}
    assert present == used
