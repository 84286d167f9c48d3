"""Chromium on the page of `astra serve`."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 60_000  # a machine may be busy; nothing is said about how long a page takes
REFUSAL = (
    "the server responded with a status of 422"  # the browser notes it; the page says it better
)

# How far things have moved that nobody touched: https://web.dev/articles/cls
WATCH_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifts.push(each.value);
}).observe({ type: "layout-shift", buffered: true });
"""


def chromium() -> str:
    """Where it lies; tests are skipped where there is none and none can be installed."""
    found = shutil.which("chromium")
    if found is None and os.environ.get("CI") == "true" and shutil.which("apt-get"):
        pytest.fail("no chromium: `make verify` installs it with apt-get", pytrace=False)
    if found is None:
        pytest.skip("needs chromium, which `make verify` installs as root on Debian")
    return found


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(SWITCHES))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, address: str, **context: Any) -> Iterator[Any]:
    """A page of its own; that it ran without a complaint and loaded nothing from elsewhere is
    checked at its end."""
    context = {"viewport": {"width": 1440, "height": 900}, **context}
    tab = browser.new_context(base_url=address, **context)
    tab.set_default_timeout(PATIENCE_MS)
    page, complaints, elsewhere = tab.new_page(), [], []
    page.on("console", lambda said: complaints.append(f"{said.type}: {said.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: elsewhere.append(asked.url))
    page.add_init_script(WATCH_SHIFTS)
    yield page
    tab.close()
    assert [said for said in complaints if REFUSAL not in said] == []
    own = (address, "data:", f"blob:{address}")
    assert [url for url in elsewhere if not url.startswith(own)] == []
