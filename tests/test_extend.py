"""What docs/extend.md shows is there, and its commands run."""

import inspect
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest

import astra
from astra.search import best_plans, objective, objectives

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "my_target"
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def blocks_of(section: str, language: str) -> list[str]:
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for text in found]


COMMANDS = {name: blocks[0] for name, text in SECTIONS.items() if (blocks := blocks_of(text, "sh"))}


def install_the_example(site: Path) -> None:
    """As pip would: the module, and what its pyproject.toml says of entry points."""
    info = site / "my_target-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-target\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[astra.targets]\nmy-trainer = my_target:TARGET\n")
    (site / "my_target.py").write_text((EXAMPLE / "my_target.py").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_of_a_section_run(name: str, tmp_path: Path) -> None:
    install_the_example(tmp_path / "site")
    for folder in ("examples", "src"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    lines = COMMANDS[name].splitlines()
    assert all(re.match(r"astra |mkdir |pip install |SKY_RUNTIME_DIR=", line) for line in lines)
    commands = [line for line in lines if not line.startswith("pip install ")]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(tmp_path / "home"),
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT / "src")]),
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if name == "An export target":
        assert (tmp_path / "job" / "trainer.json").exists()
    if name == "An objective":
        assert "kWh a step" in " ".join(done.stdout.split())


def test_every_section_of_a_file_has_commands_and_names_its_example() -> None:
    for name in ("A model", "A GPU", "A cluster", "A rule", "Prices", "A stack"):
        assert name in COMMANDS and "](../examples/" in SECTIONS[name]
    assert {"An export target", "An objective"} <= COMMANDS.keys()


def test_the_code_that_is_shown_is_the_code() -> None:
    (shown,) = blocks_of(SECTIONS["An export target"], "python")
    assert shown in (EXAMPLE / "my_target.py").read_text()
    (entry,) = blocks_of(SECTIONS["An export target"], "toml")
    assert entry in (EXAMPLE / "pyproject.toml").read_text()
    sources = [inspect.getsource(module) for module in (objective, best_plans, objectives)]
    shown_parts = blocks_of(SECTIONS["An objective"], "python")
    assert len(shown_parts) == 2
    for part in shown_parts:
        inner = textwrap.indent(part, "    ")  # a row of a table
        assert any(part in source or inner in source for source in sources)


def test_every_field_of_a_target_is_told() -> None:
    rows = "".join(line for line in SECTIONS["An export target"].splitlines() if line[:2] == "| ")
    assert [each.name for each in fields(astra.Target) if f"`{each.name}`" not in rows] == []


def test_a_minimal_target_takes_three_fields() -> None:
    target = astra.Target(name="x", runtime="fsdp", files=lambda *_, **__: {"a.json": "{}"})
    plan = astra.predict(
        "llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096, runtime="fsdp"
    ).plan
    made = target.launch_files(plan, [], train_iters=1, learning_rate=1e-4)
    assert set(made) == {"a.json", "env.txt", "launch.sh"}
