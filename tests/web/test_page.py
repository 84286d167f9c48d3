"""The page that is shipped: what it is built from, and what it may load."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from astra.report.fit_risk import risk_of
from astra.report.svg.colours import COLOURS
from astra.web.guard import POLICY
from astra.web.page import BUILT
from astra.web.routes import make_app

ADDRESS = "http://127.0.0.1:8400"
SOURCES = Path(__file__).parents[2] / "web"
MOST_BYTES = 70_000  # compressed, for the first paint


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    yield TestClient(make_app(), base_url=ADDRESS)  # its processes are not started


def linked() -> list[str]:
    """What index.html loads."""
    page = (BUILT / "index.html").read_text()
    return re.findall(r'(?:href|src)="(static/[^"]+)"', page)


def test_the_page_was_built_after_its_sources_were_last_changed() -> None:
    """`make web` builds it; the sums are of the sources that it read."""
    lines = (BUILT / "SOURCES.txt").read_text().splitlines()
    built = {line.split()[1]: line.split()[0] for line in lines}
    names = {path.name for path in SOURCES.glob("*") if path.suffix in (".js", ".css", ".html")}
    assert names <= set(built)
    for name, digest in built.items():
        assert hashlib.sha256((SOURCES / name).read_bytes()).hexdigest() == digest, name


def test_everything_that_the_page_loads_is_there_and_small(client: TestClient) -> None:
    size = 0
    for name in ("", *linked()):
        with client.stream("GET", f"/{name}", headers={"accept-encoding": "gzip"}) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"] == POLICY
            size += sum(map(len, answer.iter_raw()))
    assert 10_000 < size < MOST_BYTES


def test_files_with_a_sum_in_their_name_are_kept_and_the_page_is_not(client: TestClient) -> None:
    kept = {name: client.get(f"/{name}").headers["cache-control"] for name in ("", *linked())}
    for name, said in kept.items():
        is_fixed = re.search(r"-[0-9A-Z]{8}\.", name) is not None
        assert ("immutable" in said) == is_fixed, name
    assert sum("immutable" in said for said in kept.values()) >= 4


def test_the_policy_forbids_nothing_that_the_page_has() -> None:
    """No styles and no scripts inside the document or the templates."""
    page = (BUILT / "index.html").read_text()
    assert re.findall(r"<style|\bstyle=|<script>|\bon\w+=", page) == []
    for path in SOURCES.glob("*.js"):
        assert re.findall(r"\sstyle=|eval\(|new Function", path.read_text()) == [], path.name


def test_every_colour_of_a_chart_is_a_variable_in_light_and_in_dark(client: TestClient) -> None:
    css = client.get("/static/colours.css").text
    for colour in COLOURS.values():
        assert css.count(f"--{colour.variable}:{colour.light};") >= 1
        assert css.count(f"--{colour.variable}:{colour.dark};") >= 2  # by the system, by choice


def test_licences_of_what_the_page_contains_are_shipped() -> None:
    said = (BUILT / "LICENSES.txt").read_text()
    assert "BSD 3-Clause" in said and "SIL Open Font License" in said


@pytest.mark.parametrize("name", ["..%2fguard.py", "../guard.py", "%2e%2e/guard.py", "nothing.js"])
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_the_page_calls_a_plan_as_risky_as_answers_do() -> None:
    said = re.findall(r'\[([\d.]+), "(safe|tight|risky)"\]', (SOURCES / "answer.js").read_text())
    assert [risk for _, risk in said] == ["safe", "tight", "risky"]
    for least, risk in said:
        assert risk_of(float(least)) == risk
        assert float(least) == 0 or risk_of(float(least) - 1e-9) != risk
