"""What people see of hours and dollars: text, pictures, and errors before any search."""

import re
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec.structs import replace
from tests.search.test_market import asked

import astra
from astra.api.answers import Answer
from astra.cli.main import run
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.notes import NoteCode, note
from astra.report.amounts import tokens_down, usd
from astra.report.answer import answer_page
from astra.report.frontier_text import draw_frontier
from astra.report.frontier_words import _cheaper_day
from astra.report.plot import plot
from astra.report.svg.charts import draw
from astra.report.words import with_words

COMMAND = [
    "plan",
    "llama-3-8b",
    "--gpus",
    "h100:16",
    "--price",
    "h100=2",
    "--global-batch",
    "64",
    "--seq-len",
    "4096",
    "--objective",
    "money",
    "--tokens",
    "1B",
    "--set",
    "tp=1,2",
    "--set",
    "pp=1,2",
    "--set",
    "cp=1",
]


@pytest.fixture(scope="module")
def answer() -> Answer:
    return asked(budget=2500, deadline="2d")


def test_the_page_shows_the_arithmetic_and_the_date(
    answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    from astra.cli.printing import print_parts

    print_parts(*answer_page(answer, None))
    shown = capsys.readouterr().out
    best = answer.frontier[answer.market.chosen - 1 if answer.market else 0]
    for text in (
        "Sources of the answer: ",
        "tokens/s =",
        "goodput",
        "start-up =",
        "/h x",
        "The frontier",
        "knee",
    ):
        assert text in shown
    assert f"${best.usd:,.0f}" in shown and f"${best.usd_per_hour:,.2f}/h" in shown


def test_behind_a_cliff_the_plan_that_saves_a_day_for_least_is_named(answer: Answer) -> None:
    """The next faster plan costs twice as much a day as the one behind it."""
    best = answer.frontier[0]
    there = replace(best, hours=1000.0, usd=100.0)
    next_one = replace(best, hours=900.0, usd=300.0, rank=4)
    beyond = replace(best, hours=600.0, usd=500.0, rank=2)
    (line,) = _cheaper_day(there, [beyond, next_one], 2.0)
    assert "plan 2: $400.00 more ends 400 h" in line and "$24.00 for each day" in line
    assert _cheaper_day(there, [next_one], 2.0) == []


def test_the_head_of_a_search_for_time_says_hours_and_dollars_with_their_interval() -> None:
    job: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": 4096, "tp": 1}
    plain = astra.plan("llama-3-8b", **job).headline
    told = astra.plan("llama-3-8b", **job, tokens="1B", price={"h100": 2})
    assert plain is not None and told.headline is not None and told.best is not None
    assert told.best.hours_low and told.best.usd_high and told.best.hours
    assert told.best.hours_low < told.best.hours < (told.best.hours_high or 0)
    run = told.headline.sentence.removeprefix(f"{plain.sentence} ")
    assert run.startswith("1B tokens take ") and run.endswith(f"to {usd(told.best.usd_high)}.")


def test_the_table_counts_as_rank_does_in_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answer.json"
    run([*COMMAND, "--tokens", "1T", "--out", str(path)])
    shown = capsys.readouterr().out
    assert "explain, export and predict take as --rank\n" in shown
    rows = re.findall(r"(?m)^ *\*?([0-9]+) +[0-9.,]+ +([0-9,]+) +[0-9.,]+ +[0-9.]+ +[0-9]+%", shown)
    assert len(rows) > 1 and [rank for rank, _ in rows] == [str(n + 1) for n in range(len(rows))]
    for rank, dollars in rows:
        run(["predict", "--plan", str(path), "--rank", rank, "--tokens", "1T", "--price", "h100=2"])
        assert f"= ${dollars}\n" in capsys.readouterr().out


@pytest.mark.parametrize("goals", [{}, {"budget": 2500, "deadline": "2d"}, {"order": "throughput"}])
def test_a_plan_has_one_rank(goals: dict[str, object]) -> None:
    found = asked(**goals)
    assert len(found.frontier) > 2
    assert sorted(found.frontier, key=lambda point: point.rank)[:10] == list(found.plans)
    assert found.market and found.frontier[found.market.chosen - 1] == found.best


@pytest.mark.parametrize("width", [60, 80])
def test_no_figure_of_the_frontier_is_cut(
    width: int,
    answer: Answer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from astra.cli.printing import print_parts

    monkeypatch.setenv("COLUMNS", str(width))
    large = [
        msgspec.structs.replace(point, usd=1e4 * (point.usd or 0), hours=1e2 * (point.hours or 0))
        for point in answer.frontier
    ]
    print_parts(*answer_page(msgspec.structs.replace(answer, frontier=tuple(large)), None))
    shown = capsys.readouterr().out
    assert "…" not in shown
    words = shown.split()
    for point in large:
        assert f"{point.usd:,.0f}" in words and f"{point.hours:,.1f}" in words
        for name in point.gpus:
            assert name in words


def test_the_drawing_numbers_its_plans_and_marks_the_answer(answer: Answer) -> None:
    assert answer.market is not None
    text = draw_frontier(answer.frontier, answer.market)
    assert "*" in text and "deadline" in text and "budget" in text and "$" in text
    assert max(map(len, text.splitlines())) < 80


@pytest.mark.parametrize("room", [60, 80])
def test_the_drawing_keeps_its_words_free_and_on_the_screen(answer: Answer, room: int) -> None:
    assert answer.market is not None
    for point in answer.frontier:
        for share in (0.97, 1.0, 1.03):
            market = msgspec.structs.replace(
                answer.market,
                deadline_hours=share * (point.hours or 0),
                budget_usd=share * (point.usd or 0),
            )
            text = draw_frontier(answer.frontier, market, room)
            assert " budget" in text and "deadline" in text
            assert max(map(len, text.splitlines())) <= room
            marks = text.replace("deadline", "").replace("budget", "")
            assert {"*", *(str(p.rank) for p in answer.plans[1:9])} <= set(marks)


@pytest.mark.parametrize("parts", [("a", "b", "frontier.svg"), ("taken", "frontier.svg")])
def test_a_picture_goes_where_an_answer_would(
    parts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    path = tmp_path.joinpath(*parts)
    for option in ("--plot", "--out"):
        if parts[0] == "taken":
            with pytest.raises(InputError, match="taken: is a file where a folder belongs"):
                run([*COMMAND, option, str(path)])
        else:
            assert run([*COMMAND, option, str(path)]) == 0 and path.stat().st_size > 1000
            path.unlink()
    capsys.readouterr()


@pytest.mark.slow
def test_where_no_plan_fits_the_closest_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "frontier.svg"
    run([*COMMAND, "--seq-len", "1m", "--plot", str(path)])
    assert "drawn in" in capsys.readouterr().err and "Memory of one GPU" in path.read_text()


def test_the_svg_has_a_mark_a_plan_and_both_goals(answer: Answer) -> None:
    picture = plot(answer.to_dict(), "svg")
    assert isinstance(picture, str)
    root = ElementTree.fromstring(picture)
    ranks = [int(each.get("data-rank") or 0) for each in root.iter() if each.get("data-rank")]
    words = " ".join(each.text or "" for each in root.iter())
    for point in answer.frontier:
        assert point.rank in ranks
    assert "budget $2.5k" in words and "deadline 2 days" in words and "the answer" in words
    assert "days for 20B tokens" in words and "dollars" in words and "prices as given" in words


def test_plans_that_others_beat_are_rings(answer: Answer) -> None:
    assert answer.market is not None
    best = answer.frontier[0]
    assert best.hours is not None and best.usd is not None
    near, far = (1.02 * best.hours, 1.01 * best.usd), (1e9, 1e9)
    counts = []
    for beaten in ((), (near,), (near, far)):  # what lies outside of the picture is left out
        market = msgspec.structs.replace(answer.market, beaten=beaten)
        picture = draw("frontier", msgspec.structs.replace(answer, market=market).to_dict(), 860)
        assert ("beaten" in picture) == bool(beaten)
        counts.append(picture.count("<circle"))
    assert counts[1] == counts[0] + 2 and counts[2] == counts[1]  # one is in the legend


def test_the_html_is_one_file_with_the_picture_and_a_table(answer: Answer) -> None:
    page = plot(answer.to_dict(), "html")
    assert isinstance(page, str) and "<svg" in page and "<script" not in page
    HTMLParser().feed(page)
    for point in answer.frontier:
        assert f'<td class="number">{point.usd:,.0f}</td>' in page
    assert "<td>as given</td>" in page and "given given" not in page


def test_the_png_is_what_the_renderer_makes_of_the_svg(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def svg2png(bytestring: bytes, scale: int) -> bytes:
        return b"%d times " % scale + bytestring

    monkeypatch.setitem(sys.modules, "cairosvg", SimpleNamespace(svg2png=svg2png))
    document = answer.to_dict()
    picture, drawn = plot(document, "svg"), plot(document, "png")
    assert isinstance(picture, str) and "var(" in picture and isinstance(drawn, bytes)
    assert drawn == b"2 times " + re.sub(r"var\([^,]*, (#\w+)\)", r"\1", picture).encode()


def test_a_png_without_its_renderer_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    monkeypatch.setattr("astra.search.solve.solve", pytest.fail)
    with pytest.raises(InputError, match=r"\.svg or \.html.*astra-planner\[png\]"):
        run([*COMMAND, "--plot", str(tmp_path / "frontier.png")])


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_a_picture_is_written_where_it_is_asked_for(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"frontier.{kind}"
    assert run([*COMMAND, "--plot", str(path)]) == 0
    shown = capsys.readouterr()
    assert path.stat().st_size > 1000 and shown.out
    assert shown.err == f"astra: drawn in {path}\n"


def test_a_picture_that_cannot_be_is_refused_before_the_search() -> None:
    with pytest.raises(InputError, match=r"ends in \.svg, \.png or \.html"):
        run([*COMMAND, "--plot", "a.pdf"])


@pytest.mark.slow
def test_impossible_goals_are_told_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--budget", "5"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("No plan costs $5.00 or less: the cheapest costs $")
    run([*COMMAND, "--deadline", "0.1"])
    assert capsys.readouterr().out.startswith("No plan is done in 0.1 h: the fastest takes")
    run([*COMMAND, "--deadline", "0.1", "--budget", "5"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("No plan keeps both $5.00 and 0.1 h. None keeps the deadline: the fast")
    assert "None keeps the budget: the cheapest costs $" in shown


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--price", "h100=2.7541"],
        ["--storage-price", "0.02", "--egress-price", "0.09"],
        ["--no-failures"],
        ["--owned", "h100=31234", "--power-price", "0.13", "--order", "throughput"],
    ],
    ids=["plain", "odd price", "storage and egress", "no failures", "owned"],
)
def test_printed_figures_follow_from_the_printed_terms(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"--price", "--owned"} & set(more)
    command = [part for part in COMMAND if not own or part not in ("--price", "h100=2")]
    tokens = 300e9
    run([*command, *more, "--tokens", "300B", "--storage-size", "500"])
    text = capsys.readouterr().out
    page = " ".join(text[text.index("How the answer") :].split()).replace(",", "")

    def numbers(pattern: str) -> list[float]:
        found = re.search(pattern.replace("#", r"\$?([0-9.]+)"), page)
        assert found, pattern
        return [float(group) for group in found.groups()]

    speed, training = numbers("training 300B tokens / # tokens/s = # h")
    assert tokens / speed / 3600 == pytest.approx(training, abs=0.006)
    again, goodput, startup, wall = numbers("wall time # h / # \\+ # h start-up = # h")
    assert again == training and training / goodput + startup == pytest.approx(wall, abs=0.02)
    nodes, node, per_hour = numbers("(?:rent|owned) # nodes? .*? x #/h = #/h")
    assert nodes * node == pytest.approx(per_hour, abs=1e-4 * nodes)
    rate, hours, rent = numbers("#/h x # h = #")
    assert rate == per_hour and hours == wall
    assert rate * hours == pytest.approx(rent, abs=0.5 + 0.005 * rate)
    if "--storage-price" in more:
        size, price, months, month, stored = numbers("storage # GB x # x # months of # h = #")
        assert months == pytest.approx(hours / month, rel=1e-3) and size == 500
        assert size * price * months == pytest.approx(stored, abs=0.01)
        sent, each, egress = numbers("egress # GB x # = #")
        assert sent * each == pytest.approx(egress, abs=0.01)
        (whole,) = numbers("in all #")
        assert rent + stored + egress == pytest.approx(whole, abs=1)


def test_a_single_plan_is_a_frontier_without_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    run([*[part if part != "h100=2" else "h100=0" for part in COMMAND]])
    shown = capsys.readouterr().out
    assert "The frontier is this plan alone" in shown and "+----" not in shown


@pytest.mark.slow
def test_both_goals_name_the_way_out_of_each_and_say_which_is_nearer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    workload = ["plan", "llama-3-8b", "--gpus", "h100:64", "--global-batch", "128"]
    workload += ["--seq-len", "4096", "--tokens", "20B", "--price", "h100=3"]
    shown = []
    for goals in (["--deadline", "20h", "--budget", "1000"], ["--deadline", "5h", "--budget", "1"]):
        assert run([*workload, *goals]) == 0
        shown.append(" ".join(capsys.readouterr().out.split()))
    assert "Within the deadline the cheapest costs $" in shown[0]
    assert "The nearest, which keeps the deadline:" in shown[0]
    assert "None keeps the deadline: the fastest takes" in shown[1]
    assert "over the budget. None keeps the budget: the cheapest" in shown[1]
    assert "The nearest, which misses by at most" in shown[1]


def test_tokens_that_goals_are_enough_for_are_never_rounded_up() -> None:
    for value, said in ((1_919_600_000.0, "1.91B"), (999_999.0, "999,000"), (42.0, "42")):
        assert tokens_down(value) == said


@pytest.mark.slow
def test_elsewhere_names_a_cloud_once_with_its_cheapest_machines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "answer.json"
    command = [part for part in COMMAND if part not in ("--price", "h100=2")]
    run([*command, "--spot", "--order", "cost", "--out", str(path)])
    shown = capsys.readouterr().out
    places = msgspec.json.decode(path.read_bytes())["market"]["elsewhere"]
    clouds = [place["cloud"] for place in places]
    assert len(clouds) > 3 and len(set(clouds)) == len(clouds)
    assert any(place["spot"] for place in places)  # where both are sold, the cheaper one
    assert [place["usd"] for place in places] == sorted(place["usd"] for place in places)
    title = "The same plan on the same machines elsewhere, the cheapest of each cloud"
    table = shown.split(title)[1].split("\n\n")[0]
    for place in places:
        assert f"{place['cloud']} {place['region']} {place['instance']}" in table
    guessed = any(place["network_certainty"] == "guessed" for place in places)
    alone = "on 1 H100-80GB-SXM" in shown or "on 8 H100-80GB-SXM" in shown
    assert guessed and alone and "?" not in table  # one node asks for no network


def test_a_priced_plan_says_where_when_and_what_a_million_tokens_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "predict llama-3-8b --gpus h100:16 --tp 2 --global-batch 64 --seq-len 4096"
    run([*words.split(), "--tokens", "1T", "--json"])
    plan = msgspec.json.decode(capsys.readouterr().out)
    (rent,) = plan["money"]["rents"]
    run([*words.split(), "--tokens", "1T"])
    shown = " ".join(capsys.readouterr().out.split())
    each = plan["money"]["usd_per_million_tokens"]
    assert f"${each:.3g} a million tokens" in shown
    assert each == pytest.approx(plan["usd"] / 1e6)
    assert f"{rent['cloud']} {rent['region']} {rent['instance']}" in shown
    assert f"a GPU-hour on {rent['price_date']}" in shown


def test_dollars_of_a_plan_that_does_not_fit_say_so_beside_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "predict",
        "llama-3-70b",
        "--gpus",
        "h100:8",
        "--tp",
        "2",
        "--global-batch",
        "64",
        "--price",
        "h100=2",
    ]
    run([*words, "--tokens", "1B"])
    shown = " ".join(capsys.readouterr().out.split())
    title = "What a run would take and cost if the plan did fit: it DOES NOT FIT"
    assert f"{title} llama-3-70b on 1B tokens: $" in shown and "What a run takes" not in shown
    assert "with tp 2 pp 1 dp 4 mb 1, which DOES NOT FIT." in shown
    run([*words, "--tokens", "1B", "--json"])
    plan = msgspec.json.decode(capsys.readouterr().out)
    assert plan["usd"] > 0 and not plan["memory"]["fits"]
    assert any("dollars are of a plan that does not fit" in said for said in plan["warnings"])
    run([*words, "--json"])  # no tokens, no dollars: nothing to say of them
    plan = msgspec.json.decode(capsys.readouterr().out)
    assert plan["usd"] is None and not any("dollars are of" in said for said in plan["warnings"])


def test_warnings_are_on_the_page_and_in_the_html_with_the_plans_they_hold_for(
    answer: Answer,
) -> None:
    points: list[PricedPlan] = list(answer.frontier)
    assert len(points) > 2
    odd, fastest = (
        note(NoteCode.NO_PRICE, error=text) for text in ("all of it <is> odd", "the fastest is odd")
    )
    points[0] = with_words(replace(points[0], notes=(odd, fastest)))
    points[1:] = [with_words(replace(point, notes=(odd,))) for point in points[1:]]
    warned = replace(answer, frontier=tuple(points))
    page = " ".join(str(part) for part in answer_page(warned, None))
    html = plot(warned.to_dict(), "html")
    assert isinstance(html, str)
    one = f"plan {points[0].rank}: the fastest is odd"
    assert "warning: all of it <is> odd" in page and f"warning: {one}" in page
    assert "Warning: all of it &lt;is&gt; odd" in html and f"Warning: {one}" in html
    plain = str(plot(answer.to_dict(), "html"))
    assert page.count("warning: all of it") == 1 and "Warning:" not in plain
    notes = answer.request.notes
    assert notes
    assert all(f"Note: {escape(text)}" in html for text in notes)


def test_a_search_for_time_says_why_it_has_no_dollars(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-3.2-1b --gpus h800:8 --global-batch 64 --seq-len 2048 --tokens 1T"
    run([*words.split(), "--set", "tp=1"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("warning: no price of H800 is known.") == 1


def test_money_says_once_that_ram_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-30b --gpus h100:4 --price h100=2 --global-batch 64 --seq-len 2048"
    run([*words.split(), "--objective", "money", "--tokens", "1B", "--set", "tp=4"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("how much RAM a node has is not known") == 1


def test_a_sequence_beyond_the_models_positions_is_warned_of_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "plan llama-7b --gpus h100:8 --global-batch 64 --seq-len 4096 --set tp=2"
    run(words.split())
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("beyond the 2,048 positions llama-7b was made for") == 1


@pytest.mark.parametrize("words", [["--spot"], ["--cloud", "aws"], ["--mtbf", "1000"]])
def test_words_about_money_without_tokens_are_not_passed_over(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    job = ["llama-3.2-1b", "--gpus", "h100:8", "--global-batch", "64", "--seq-len", "2048"]
    run(["plan", *job, "--set", "tp=1", *words])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("warning: hours and dollars need --tokens") == 1
    run(["predict", *job, *words, "--json"])
    plan = msgspec.json.decode(capsys.readouterr().out)
    assert plan["usd_per_hour"] > 0 and plan["usd"] is None
    assert "hours and dollars need --tokens" in plan["warnings"]
