"""The pages of report and inspect in Chromium, wide and narrow."""

import pytest
from browser.chromium import needs_browser, open_page
from report.test_inspect import row, write_credit
from report.trl_run import write_trl_run

from trl_miner.report.inspect import write_page
from trl_miner.report.page import make_report, write_report

WIDTHS = pytest.mark.parametrize("width", [1280, 400])
LONG = "a_word_without_any_space" * 20


def fits(page):
    """Whether nothing of a page sticks out at its side."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@needs_browser
@WIDTHS
def test_inspect_in_a_browser(tmp_path, width):
    rows = [row(group=n, rollout=m, tokens=("so ", LONG)) for n in range(2) for m in range(4)]
    path = write_page(write_credit(tmp_path / "run", *rows))
    with open_page(path, viewport={"width": width, "height": 800}) as page:
        assert fits(page)
        assert page.locator("details[open]").count() == 1
        page.locator("summary").nth(1).click()
        assert page.locator("details[open]").count() == 2
        assert fits(page)
        page.screenshot_as(f"inspect-{width}.png", tmp_path, full_page=True)
        page.assert_quiet()


@needs_browser
@WIDTHS
def test_report_in_a_browser(tmp_path, width):
    texts = [[[r"\boxed{9}", LONG]]]
    folders = [
        write_trl_run(tmp_path / name, [[[1, 0]]], solution="7", texts=texts) for name in "abcd"
    ]
    path, picture = write_report(make_report(folders), tmp_path / "out")
    with open_page(path, viewport={"width": width, "height": 800}) as page:
        assert fits(page)
        assert page.evaluate("document.images[0].naturalWidth") > 0
        page.screenshot_as(f"report-{width}.png", tmp_path, full_page=True)
        assert page.requests == [picture.as_uri()]
        assert not page.errors
