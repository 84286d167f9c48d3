"""Tables on narrow screens: nothing that counts is cut, and no column of single letters."""

import re

import pytest

from astra.cli.main import run
from astra.report.text_table import TableColumn, TextTable

COLUMNS = (
    TableColumn("rank"),
    TableColumn("USD"),
    TableColumn("good", lesser=True),
    TableColumn("GPUs", right=False, words=True),
    TableColumn("where", right=False, words=True),
)
CELLS = (
    ("1", "1,098,351", "99%", "256 H200-SXM", "nebius eu-north1"),
    ("12", "992,383", "98%", "8 H100-80GB-SXM + 8 H200-SXM", "aws us-east-1 + aws us-east-1"),
)


@pytest.mark.parametrize(("width", "lines"), [(90, 3), (60, 6), (34, 7), (20, 10)])
def test_words_give_way_and_figures_stay(width: int, lines: int) -> None:
    shown = TextTable(COLUMNS, CELLS).lines(width)
    assert len(shown) == lines
    assert max(map(len, shown)) <= width
    words = set(" ".join(shown).split())
    for row in CELLS:
        assert {row[0], row[1]} <= words
        assert set(" ".join(row[3:]).split()) <= words
    assert ("99%" in words) == (width > 20)


def test_a_word_longer_than_the_screen_is_broken_not_lost() -> None:
    shown = TextTable(
        (TableColumn("a"), TableColumn("where", right=False, words=True)), (("1", "x" * 30),)
    )
    lines = shown.lines(20)
    assert max(map(len, lines)) <= 20
    assert "".join(lines).count("x") == 30


@pytest.mark.parametrize("words", [[], ["--cloud", "nebius"], ["h100", "--spot"]])
@pytest.mark.parametrize("width", [60, 80])
def test_prices_take_two_lines_an_offer_at_most(
    words: list[str],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["prices", *words, "--top", "20"]) == 0
    shown = capsys.readouterr().out.split("\n\nUSD an hour")[0].splitlines()
    start = next(row for row, line in enumerate(shown) if "$/GPU-h" in line)
    table = [line for line in shown[start:] if "more: --top" not in line]
    offers = [line for line in table if re.match(r" *[0-9]+\.[0-9]{2} +[0-9.]+ ", line)]
    assert len(offers) >= 5
    assert all(re.search(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}", line) for line in offers)
    assert len(table) <= 2 * (len(offers) + 1)
    assert max(map(len, table)) <= width
