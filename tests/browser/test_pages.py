"""The pages of report and inspect in Chromium, wide and narrow."""

import contextlib
import shutil

import pytest
from report.test_inspect import row, write_credit
from report.trl_run import write_trl_run

from trl_miner.report.inspect import write_page
from trl_miner.report.page import make_report, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LONG = "a_word_without_any_space" * 20
WIDTHS = pytest.mark.parametrize("width", [1280, 400])
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium (apt-get install chromium)"),
]


@contextlib.contextmanager
def opened(path, width):
    """Yield a page without a network; it must ask for no other address and have no error."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.set_viewport_size({"width": width, "height": 800})
        faults = []
        page.on("pageerror", lambda error: faults.append(error))
        page.on("requestfailed", lambda request: faults.append(request.url))
        page.goto(path.resolve().as_uri())
        yield page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert faults == []
        browser.close()


@WIDTHS
def test_inspect_in_a_browser(tmp_path, width):
    rows = [row(group=n, rollout=m, tokens=("so ", LONG)) for n in range(2) for m in range(4)]
    with opened(write_page(write_credit(tmp_path / "run", *rows)), width) as page:
        assert page.locator("details[open]").count() == 1
        page.locator("summary").nth(1).click()
        assert page.locator("details[open]").count() == 2


@WIDTHS
def test_report_in_a_browser(tmp_path, width):
    texts = [[[r"\boxed{9}", LONG]]]
    folders = [
        write_trl_run(tmp_path / name, [[[1, 0]]], solution="7", texts=texts) for name in "abcd"
    ]
    with opened(write_report(make_report(folders), tmp_path / "out")[0], width) as page:
        assert page.evaluate("document.images[0].naturalWidth") > 0
