"""`astra gpus`: the listing and one GPU, for people and for programs."""

import json
from pathlib import Path

import pytest

from astra.cli.main import run
from astra.errors import InputError
from astra.files import parse_toml
from astra.hardware.gpu_file import gpu_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "my-gpu.toml"


def test_the_listing_has_every_gpu_and_fits_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["gpus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    h100 = next(line for line in lines if line.startswith("H100-80GB-SXM"))
    assert " ".join(h100.split()[1:]) == "80 79.1 3.35 989 1979 450 8 400 700 high"


def test_the_json_listing_has_every_gpu_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    run(["gpus", "--json"])
    gpus = json.loads(capsys.readouterr().out)["gpus"]
    assert len(gpus) == 45 and all(gpu["source"]["where"] for gpu in gpus)


def test_one_gpu_in_json_says_how_its_name_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    run(["gpus", "h100", "--json"])
    gpu = json.loads(capsys.readouterr().out)
    assert (gpu["name"], gpu["memory_bytes_per_s"]) == ("H100-80GB-SXM", 3.35e12)
    assert gpu["source"]["kind"] == "vendor"
    assert gpu["notes"] == ["h100 was read as H100-80GB-SXM"]


def test_one_gpu_for_people_has_units_aliases_and_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(["gpus", "h100"])
    page = capsys.readouterr().out
    assert page.startswith("h100 was read as H100-80GB-SXM.")
    for said in ("79.1 GiB usable", "989.4 TFLOP/s", "400 Gbps", "H100-SXM5", "data sheet"):
        assert said in page


def test_a_users_gpu_shows_what_was_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    run(["gpus", str(EXAMPLE)])
    assert "98.5 % of memory_bytes" in capsys.readouterr().out


def test_a_filter_keeps_what_holds_every_word(capsys: pytest.CaptureFixture[str]) -> None:
    run(["gpus", "--filter", "hopper superchip", "--json"])
    gpus = json.loads(capsys.readouterr().out)["gpus"]
    assert [gpu["name"] for gpu in gpus] == ["GH200-144GB", "GH200-96GB"]


def test_a_filter_that_keeps_nothing_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gpus", "--filter", "abacus"]) == 0
    assert "No GPU matches" in capsys.readouterr().out


def test_the_help_shows_a_gpu_description_that_loads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["gpus", "--help"])
    shown = capsys.readouterr().out.partition("with a unit:\n")[2].partition("my-cluster.toml")[0]
    gpu = gpu_of(parse_toml(shown, "help"), "help", "help")
    assert (gpu.name, gpu.memory_bytes, gpu.link.domain_gpus) == ("my-gpu", 64e9, 8)


def test_a_name_and_a_filter_exclude_each_other() -> None:
    with pytest.raises(InputError, match="exclude each other"):
        run(["gpus", "h100", "--filter", "x"])


def test_what_nobody_timed_is_marked_and_its_lender_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(["gpus"])
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert rows["H100-80GB-SXM"][6:9] == ["450", "8", "400"]  # timed in nodes and between them
    assert rows["B300"][6:9] == ["900", "8", "800?"]  # in nodes alone
    assert rows["H20"][6:9] == ["450?", "8", "400"]  # its generation between nodes
    assert rows["Gaudi3"][6:9] == ["525?", "8", "600?"]
    run(["gpus", "b300"])
    page = " ".join(capsys.readouterr().out.split())
    assert "between nodes borrowed from compute capability 10.0 (fitted: B200" in page
    assert "in a node fitted: collectives timed on NVIDIA B300" in page
    assert "high certainty at aws; GUESSED for nodes of nebius (" in page
    run(["gpus", "h20", "--json"])
    links = json.loads(capsys.readouterr().out)["collectives"]
    assert links["borrowed"] and "borrowed from H100-80GB-SXM" in links["inside"]
    assert not links["across_borrowed"]
