"""The documentation says what the code says."""

import re
from pathlib import Path

import pytest
from tests.support.cases import each_case

import astra
from astra.cli.main import COMMANDS, run
from astra.strategy.space import DIMENSIONS

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    missing = [name for name in astra.__all__ if f"`{name}" not in page]
    assert not missing


def test_the_page_of_the_space_lists_every_dimension_as_it_is() -> None:
    page = (ROOT / "docs" / "space.md").read_text(encoding="utf-8")
    for dimension in DIMENSIONS:
        assert f"| `{dimension.name}` | {dimension.how} | {dimension.why} |" in page


def test_the_readme_shows_every_command() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line.partition("#")[0] for line in page.splitlines() if line.startswith("astra ")]
    shown = {name for line in lines for name in re.findall(r"(?:^astra| \|) ([a-z]+)", line)}
    assert set(COMMANDS) <= shown


def links_of(page: Path) -> set[Path]:
    """Files that a page links to, addresses on the web left out."""
    found = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in found if "://" not in link}


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@each_case("page", PAGES)
def test_every_file_a_page_links_to_is_there(page: Path) -> None:
    assert [link for link in links_of(page) if not link.exists()] == []


def test_the_readme_leads_to_the_index_and_the_index_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    assert index in links_of(ROOT / "README.md")
    assert links_of(index) == {*(ROOT / "docs").rglob("*.md")} - {index}


def test_guides_are_short() -> None:
    """Long pages are reports; those are written by tools."""
    lines = {page.name: page.read_text().count("\n") for page in (ROOT / "docs").glob("*.md")}
    assert {name: count for name, count in lines.items() if count > 200} == {}


def test_the_readme_gives_the_accuracy_that_was_measured() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "reports" / "accuracy.md").read_text(encoding="utf-8")
    scores = re.findall(r"^\| (?:as shipped|with all those factors).*?\| ([\d.]+%)", page, re.M)
    assert len(scores) == 2 and all(score in readme for score in scores)


def test_the_table_of_pipeline_models_is_the_one_the_script_prints() -> None:
    from tools.pipeline_models import table

    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in page


def test_the_page_on_money_names_every_guessed_network_that_clusters_are_made_of() -> None:
    from astra.money.catalogue import GUESSED, joins, shipped_offers

    page = (ROOT / "docs" / "money.md").read_text(encoding="utf-8")
    machines = {offer.machine for offer in shipped_offers()}
    guessed = {
        f"| {m.cloud} | {m.gpu} | {m.nic_bytes_per_s * 8 / 1e9:g} Gbps |"
        for m in machines
        if m.certainty == GUESSED and joins(m)
    }
    table = page.split("guessed for one GPU |")[1].split("\n\n")[0]
    assert set(table.splitlines()[2:]) == guessed


def test_the_page_of_clusters_has_every_field_and_its_example_is_read(tmp_path: Path) -> None:
    from astra.hardware.cluster_file import PoolTable, read_cluster

    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    rows = "".join(line for line in page.splitlines() if line.startswith("| `"))
    assert [name for name in PoolTable.__struct_fields__ if f"`{name}`" not in rows] == []
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "c.toml").write_text(text)
    cluster, _ = read_cluster(tmp_path / "c.toml")
    assert [pool.count for pool in cluster.pools] == [64, 32] and cluster.max_gpus == 96


def test_the_cluster_that_the_help_shows_is_read(tmp_path: Path) -> None:
    from astra.cli.gpus import EXAMPLES
    from astra.hardware.cluster_file import read_cluster

    shown = EXAMPLES[EXAMPLES.index("  [[pools]]") :]
    (tmp_path / "c.toml").write_text("\n".join(line[2:] for line in shown.splitlines()))
    cluster, _ = read_cluster(tmp_path / "c.toml")
    assert cluster.pools[0].gpu.node.gpus == 4


@pytest.mark.slow
def test_the_example_of_the_python_page_runs() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lines = [line for line in code.splitlines() if "to_frame" not in line]  # needs a library
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    assert isinstance(names["priced"], astra.PricedPlan)
    assert isinstance(names["answer"], astra.Answer)


def test_every_option_of_the_glossary_exists() -> None:
    from astra.cli.main import parser_for

    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    known = {
        option
        for command in COMMANDS
        for action in parser_for(command)._actions
        for option in action.option_strings
    }
    named = set(re.findall(r"`(--[a-z-]+)", page))
    assert named and named <= known


@pytest.mark.slow
def test_the_answer_that_the_readme_shows_is_the_one_that_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for how long it took."""
    command = "plan llama-3-70b --gpus h100:512 --global-batch 1024 --seq-len 4096"
    assert command in (ROOT / "Makefile").read_text(encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "100")
    assert run(command.split()) == 0
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("$ make plan\n")[2].partition("```")[0]
    took = re.compile(r"[0-9.]+ s\.$", re.MULTILINE)
    assert took.sub("", shown).split() == took.sub("", capsys.readouterr().out).split()
