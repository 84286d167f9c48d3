"""The page of `astra serve` in a real browser: what a person does with it."""

import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from tests.support.browser import PATIENCE_MS, browsing, opened
from tests.support.frameworks import needs
from tests.support.serving import serving

needs("playwright", "starlette", "uvicorn")
from playwright.sync_api import expect  # noqa: E402

SCRIPTS = Path(__file__).parents[1] / "imports" / "scripts"
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
SMALL = "model=llama-3-8b&global-batch=32&seq-len=4096&set=recompute=none"
ONE = f"{SMALL} tp=2,4&gpus=h100:8"
MIXED = f"{SMALL} tp=2 micro_batch=1&gpus=h100:8,a100-80g:8"
MONEY = f"{SMALL} tp=2&gpus=h100:16&objective=money&tokens=10B"
LONG = "model=llama-3-70b&gpus=h100:256,a100-80g:512,h200:64&global-batch=2048&seq-len=4096"
TOO_SMALL = "model=llama-3-70b&gpus=a100-40g:1&global-batch=8&seq-len=4096"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving("--workers", "1") as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    expect.set_options(timeout=PATIENCE_MS)
    with browsing() as found:
        yield found


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with opened(browser, address, permissions=["clipboard-read", "clipboard-write"]) as found:
        yield found


def ask(page: Any, question: str) -> None:
    """By a link, and wait until everything that belongs to the answer is there."""
    page.goto(f"/#{question}")
    settle(page)


def settle(page: Any) -> None:
    expect(page.locator("h1.headline")).to_be_visible()
    expect(page.locator(".is-old, .running, [aria-busy]")).to_have_count(0)
    expect(page.locator("#export pre, .nothing-fits").first).to_be_visible()


def until(page: Any, holds: Callable[[], bool]) -> None:
    """What no element says; the page's policy forbids Playwright's own way to wait for it."""
    for _ in range(PATIENCE_MS // 100):
        if holds():
            return
        page.wait_for_timeout(100)
    raise AssertionError("it did not come to hold")


def card(page: Any, title: str) -> Any:
    return page.locator("section.card", has=page.get_by_role("heading", name=title))


def answered(address: str, name: str, **words: Any) -> Any:
    """What the server says to a program."""
    body = json.dumps(words).encode() if words else None  # without words it is a listing
    asked = Request(f"{address}/api/{name}", body, {"content-type": "application/json"})
    with urlopen(asked) as answer:
        return json.load(answer)


JOB = {"model": "llama-3-8b", "gpus": "h100:8", "global_batch": 32, "seq_len": 4096}
NARROW = {"set": ["recompute=none", "tp=2,4"]}


def test_plans_are_those_of_the_server_sorted_filtered_zoomed_and_nothing_moves(
    page: Any, address: str
) -> None:
    ask(page, ONE)
    found = answered(address, "plan", **JOB, **NARROW)
    rows = page.locator("table.plans [data-rank]")
    shown = [row.get_attribute("aria-label") for row in rows.all()]
    assert shown == [f"plan {plan['rank']}: {plan['summary']}" for plan in found["plans"]]
    expect(page.locator("h1.headline")).to_contain_text(found["answer"]["title"].split(" on ")[0])
    expect(page.locator("#command")).to_have_text(found["request"]["command"])
    why = answered(address, "explain", plan=found)
    expect(card(page, "Why this one")).to_contain_text(why["binding"]["sentence"])
    for name in ("timeline", "parts", "memory", "changes"):
        expect(page.get_by_role("button", name=f"{name} as SVG")).to_be_visible()
    assert sum(page.evaluate("window.shifts")) < 0.02
    rows = page.locator("table.plans tbody tr")
    page.get_by_placeholder("only plans with").fill("tp=2")
    for settings in rows.locator(".settings").all_inner_texts():
        assert "tp\u00a02" in settings
    page.get_by_placeholder("only plans with").fill("")
    page.get_by_role("button", name="Fullest GPU").click()
    filled = [int(each.split()[0]) for each in rows.locator(".memory").all_inner_texts()]
    assert filled == sorted(filled) and len(filled) > 3
    rows.locator("[data-rank='2']").click()
    expect(page.locator(".chosen")).to_contain_text("Below: plan 2")
    assert "plan=2" in page.url
    settle(page)
    timeline = page.locator(".timeline svg")
    whole = timeline.evaluate("(each) => each.outerHTML")
    page.get_by_role("button", name="Start", exact=True).click()
    until(page, lambda: timeline.evaluate("(each) => each.outerHTML") != whole)
    page.locator(".timeline").dblclick()
    until(page, lambda: timeline.evaluate("(each) => each.outerHTML") == whole)


def test_a_pool_of_two_types_is_drawn_with_what_mixing_brings(page: Any, address: str) -> None:
    ask(page, MIXED)
    found = answered(
        address,
        "plan",
        **{**JOB, "gpus": "h100:8,a100-80g:8"},
        set=["recompute=none", "tp=2", "micro_batch=1"],
    )
    expect(page.locator("[data-rank='1']")).to_have_attribute(
        "aria-label", f"plan 1: {found['plans'][0]['summary']}"
    )
    expect(card(page, "What mixing brings").locator("svg").first).to_be_visible()


def test_points_of_the_frontier_are_plans_and_sliders_say_what_holds(page: Any) -> None:
    ask(page, MONEY)
    expect(page.locator("h1.headline")).to_contain_text("$")
    points = card(page, "Time against money").get_by_role("button", name=re.compile(r"^plan \d+$"))
    assert points.count() > 1
    points.nth(1 if points.first.get_attribute("aria-label") == "plan 1" else 0).click()
    expect(page.locator(".chosen")).to_be_visible()
    slider = page.get_by_role("slider").first
    before = card(page, "What if").inner_text()
    slider.press("Home")
    expect(card(page, "What if")).not_to_have_text(before)


def test_bad_input_is_told_at_its_field_and_mended_by_a_click(page: Any) -> None:
    ask(page, ONE)
    headline = page.locator("h1.headline").inner_text()
    page.locator("#model").fill("llama-3-8")
    wrong = page.locator("#wrong")
    expect(wrong).to_contain_text("llama-3-8")
    expect(page.locator("#model")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#model")).to_have_attribute("aria-describedby", "wrong")
    field, said = page.locator("#model").bounding_box(), wrong.bounding_box()
    assert 0 <= said["y"] - field["y"] - field["height"] < 30
    expect(page.locator("h1.headline")).to_have_text(headline)  # the last good answer stays
    wrong.get_by_role("button", name="llama-3-8b").click()
    expect(wrong).to_have_count(0)
    expect(page.locator("#model")).to_have_value("llama-3-8b")
    page.locator("#gpu-0").fill("h10")
    expect(wrong).to_be_visible()
    expect(page.locator("#gpu-0")).to_have_attribute("aria-invalid", "true")
    page.locator("#gpu-0").fill("h100")
    settle(page)


def test_where_nothing_fits_a_click_asks_with_more_gpus(page: Any) -> None:
    ask(page, TOO_SMALL)
    expect(page.locator(".nothing-fits")).to_contain_text("What would help")
    more = page.get_by_role("button", name=re.compile("^Try .* GPUs"))
    number = re.findall(r"\d+", more.inner_text())[0]
    more.click()
    expect(page.locator("table.plans [data-rank]").first).to_be_visible()
    expect(page.locator("#count-0")).to_have_value(number)


def test_a_search_is_stopped_with_the_best_so_far_or_left_for_another_question(page: Any) -> None:
    page.goto(f"/#{LONG}&exact=true")
    stop = page.locator("#stop")
    expect(stop).to_be_enabled()
    stop.click()
    expect(page.locator(".stopped")).to_be_visible()
    expect(page.locator(".risk")).to_contain_text("not proven")
    place = page.locator(".cards h1").bounding_box()
    page.get_by_role("button", name="Go on searching").click()
    expect(stop).to_be_enabled()
    assert page.locator(".cards h1").bounding_box() == place  # the last answer stays where it is
    page.goto(f"/#{ONE}")
    expect(page.locator("#command")).to_contain_text("llama-3-8b")
    settle(page)


def test_a_plan_is_edited_in_place_priced_and_refused_in_the_rule_s_words(
    page: Any, address: str
) -> None:
    ask(page, ONE)
    why = card(page, "Why this one")
    why.get_by_label("micro-batch").fill("1")
    verdict = why.locator(".verdict")
    expect(verdict).to_contain_text("fits with probability")
    verdict.get_by_role("button", name="Add to the plans").click()
    yours = page.locator("[data-rank='yours 1']")
    expect(yours).to_be_visible()
    assert "mb 1" in yours.get_attribute("aria-label")
    settle(page)
    why.get_by_label("vpp").fill("2")
    expect(verdict).to_contain_text("Refused:")
    rule = answered(address, "rules?name=interleaving-needs-stages")
    expect(verdict).to_contain_text(f"[rule {rule['name']}]")
    expect(verdict).to_contain_text("need a pipeline-parallel size above 1")
    verdict.get_by_role("button", name="pp 2", exact=True).click()
    expect(verdict).not_to_contain_text("Refused:")
    expect(why.get_by_label("pp", exact=True)).to_have_value("2")
    page.locator("#model").fill("llama-3-8")  # the next question, not this answer's
    expect(page.locator("#wrong")).to_be_visible()
    expect(verdict).to_contain_text("GiB")


def test_two_plans_are_compared_and_what_differs_stands_out(page: Any, address: str) -> None:
    ask(page, ONE)
    found = answered(address, "plan", **JOB, **NARROW)["plans"]
    page.locator("[data-rank='2']").click()
    page.get_by_role("button", name="Compare with 1").click()
    table = page.locator("#compare table")
    expect(table).to_be_visible()
    differs = []
    for row in table.locator("tbody tr").all():
        name = row.locator("th").inner_text().split(",")[0].strip()
        one, other = row.locator("td").all_inner_texts()
        assert row.get_attribute("class") == ("same" if one == other else "differs"), name
        differs += [name] * (one != other)
    one, other = (plan["plan"] for plan in found[:2])
    for name in ("sharding", "cp", "micro_batch", "vpp"):
        assert (name.replace("_", " ") in differs) == (one[name] != other[name])
    assert "fullest GPU" in differs
    page.keyboard.press("Escape")
    expect(table).to_have_count(0)
    settle(page)


def test_launch_files_are_shown_and_downloaded_as_they_are_shown(page: Any, address: str) -> None:
    ask(page, ONE)
    export = card(page, "Export")
    shown = {}
    for button in export.locator(".files button").all():
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        shown[button.inner_text()] = export.locator(".files pre").text_content()
    with page.expect_download() as waiting:
        page.locator("#download").click()
    with zipfile.ZipFile(waiting.value.path()) as packed:
        assert {name: packed.read(name).decode() for name in packed.namelist()} == shown
    export.get_by_role("button", name="torchtitan").click()
    expect(export.locator(".wrong")).to_be_visible()  # a plan of Megatron-LM's
    with page.expect_download() as waiting:
        export.get_by_role("button", name="Download result.json").click()
    answer = json.loads(Path(waiting.value.path()).read_text())
    files = answered(address, "export", plan=answer, to="megatron")["files"]
    assert {file["name"]: file["text"] for file in files} == shown


def drop(page: Any, name: str, text: str) -> None:
    page.evaluate(
        """([name, text]) => {
          const dropped = new DataTransfer();
          dropped.items.add(new File([text], name));
          const how = { dataTransfer: dropped, bubbles: true, cancelable: true };
          document.body.dispatchEvent(new DragEvent("drop", how));
        }""",
        [name, text],
    )


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def test_a_config_that_is_dropped_is_the_model_and_stands_in_the_link(
    page: Any, address: str
) -> None:
    ask(page, ONE)
    drop(page, "config.json", json.dumps(CONFIG))
    expect(page.locator(".sentence")).to_contain_text("config.json")
    expect(page.locator("#model")).to_have_count(0)
    settle(page)
    found = answered(address, "plan", **{**JOB, "model": CONFIG}, **NARROW)
    best = page.locator("[data-rank='1']")
    expect(best).to_have_attribute("aria-label", f"plan 1: {found['plans'][0]['summary']}")
    assert page.evaluate("location.hash").startswith("#file=")
    page.reload()
    settle(page)
    expect(best).to_have_attribute("aria-label", f"plan 1: {found['plans'][0]['summary']}")


def test_a_script_that_is_dropped_is_priced_and_a_log_has_no_command(page: Any) -> None:
    page.goto("/")
    drop(page, "train.log", "iteration 10/100 | elapsed time per iteration (ms): 1234.5 |\n")
    job = page.locator("section.card.job")
    expect(job.get_by_role("alert")).to_contain_text("no training command was found")
    drop(page, "llama3_fp8.sh", (SCRIPTS / "llama3_fp8.sh").read_text())
    expect(job).to_contain_text("Read as a job of")
    expect(job).to_contain_text("fullest GPU")
    job.get_by_label("measured seconds of a step").fill("1000")
    expect(job).to_contain_text("less than measured, outside of its interval")


def test_a_result_that_is_dropped_is_shown_as_it_is(page: Any, address: str) -> None:
    found = answered(address, "plan", **JOB, **NARROW)
    page.goto("/")
    drop(page, "result.json", json.dumps(found))
    settle(page)
    expect(page.locator("#command")).to_have_text(found["request"]["command"])
    expect(page.locator("#model")).to_have_value("llama-3-8b")


def test_a_link_restores_the_question_and_the_plan(page: Any, browser: Any, address: str) -> None:
    ask(page, ONE)
    page.locator("#global-batch").fill("64")
    page.get_by_text("more", exact=True).click()
    page.locator("#more-memory-margin").fill("0.1")
    page.locator("#more-precision").select_option("fp8")
    page.keyboard.press("Enter")
    expect(page.locator("#command")).to_contain_text("--memory-margin 0.1")
    expect(page.locator("#command")).to_contain_text("--precision fp8")
    settle(page)
    page.locator("[data-rank='3']").click()
    settle(page)
    page.locator("#copy-link").click()
    expect(page.locator(".notice")).to_contain_text("copied")
    link = page.evaluate("navigator.clipboard.readText()")
    said = page.locator("#command").inner_text(), page.locator(".chosen").inner_text()
    with opened(browser, address) as other:
        other.goto(link)
        settle(other)
        assert said == (
            other.locator("#command").inner_text(),
            other.locator(".chosen").inner_text(),
        )
        expect(other.locator("#global-batch")).to_have_value("64")


FOCUS = """() => {
  const { activeElement: at } = document, { outlineStyle, boxShadow } = getComputedStyle(at);
  const isSeen = at === document.body || outlineStyle !== "none" || boxShadow !== "none"
    || getComputedStyle(at.parentElement).outlineStyle !== "none";
  return { id: at.id, rank: at.dataset.rank ?? "", name: at.tagName, isSeen };
}"""


def walk_to(page: Any, wanted: Any, most: int = 80) -> dict[str, Any]:
    """By Tab alone; where the focus is can be seen all the way."""
    for _ in range(most):
        page.keyboard.press("Tab")
        at: dict[str, Any] = page.evaluate(FOCUS)
        assert at["isSeen"], at
        if wanted(at):
            return at
    raise AssertionError("the focus did not come there")


def test_all_of_it_can_be_done_by_keyboard(page: Any) -> None:
    page.goto("/")
    for id_, text in (
        ("model", "llama-3-8b"),
        ("count-0", "8"),
        ("gpu-0", "h100"),
        ("global-batch", "32"),
        ("seq-len", "4096"),
    ):
        walk_to(page, lambda at, id_=id_: at["id"] == id_)
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    settle(page)
    walk_to(page, lambda at: at["rank"] == "1")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".chosen")).to_contain_text("Below: plan 2")
    assert page.evaluate(FOCUS)["rank"] == "2"
    page.keyboard.press("c")
    expect(page.locator("#compare")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#compare")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.locator("#close-keys")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("e")
    assert page.evaluate("document.activeElement.closest('#export') !== null")
    page.keyboard.press("/")
    expect(page.locator("#model")).to_be_focused()
    settle(page)


@pytest.mark.parametrize("question", ("", ONE, MIXED, MONEY, TOO_SMALL))
def test_it_is_narrow_enough_for_a_phone_and_axe_finds_nothing_serious(
    question: str, page: Any
) -> None:
    page.goto(f"/#{question}")
    if question:
        settle(page)
    if question == ONE:
        page.locator("[data-rank='2']").click()
        page.get_by_role("button", name="Compare with 1").click()
        page.locator("#global-batch").fill("none")
        expect(page.locator("#wrong")).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert serious(page) == {}, scheme
    page.set_viewport_size({"width": 320, "height": 640})
    widths = "[...document.querySelectorAll('.picture svg')].map((each) => each.clientWidth)"
    until(page, lambda: max([0, *page.evaluate(widths)]) <= 320)  # charts are drawn anew
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert serious(page) == {}


def serious(page: Any) -> dict[str, list[str]]:
    """What axe-core holds against the page as it stands, by its rules."""
    if not AXE.exists():
        pytest.skip("needs axe-core: `npm ci` in web/")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return {
        each["id"]: [node["html"][:200] + node["failureSummary"] for node in each["nodes"]]
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    }
