"""The page of `astra serve` with an answer, as a picture for the README.

make screenshot        # docs/page.png; Chromium is needed
python -m tools.screenshot --out page-dark.png --scheme dark --width 390
"""

import argparse
from pathlib import Path

from tests.support.browser import browsing, opened
from tests.support.serving import serving

QUESTION = "model=llama-3-70b&gpus=h100:512&global-batch=1024&seq-len=4096"
OUT = Path(__file__).parents[1] / "docs" / "page.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--question", default=QUESTION, help="as the page's address has it")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--height", type=int, default=850)
    parser.add_argument("--whole", action="store_true", help="down to the end of the page")
    said = parser.parse_args()
    seen = {"viewport": {"width": said.width, "height": said.height}, "color_scheme": said.scheme}
    with (
        serving("--workers", "1") as (address, _),
        browsing() as browser,
        opened(browser, address, **seen) as page,
    ):
        page.goto(f"/#{said.question}")
        page.locator(".headline").wait_for()
        while page.locator(".is-old, .running, [aria-busy]").count():
            page.wait_for_timeout(100)
        page.wait_for_timeout(500)  # fonts and the last frame
        page.screenshot(path=said.out, full_page=said.whole)


if __name__ == "__main__":
    main()
