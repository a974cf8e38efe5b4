"""A page in headless Chromium, with a record of its errors and of its requests, which a page on
disk should not make.

from browser.chromium import needs_browser, open_page

@needs_browser
def test_...(tmp_path):
    with open_page(path, color_scheme="dark") as page:
        page.keyboard.press("j")
        page.assert_quiet()  # no error on the console, none uncaught, no request
        page.screenshot_as("dark.png", tmp_path)
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

_missing = [
    name for name, found in (("chromium", CHROMIUM), ("playwright", sync_playwright)) if not found
]
_reason = f"needs {' and '.join(_missing)} (apt-get install chromium; pip install playwright)"
# Where a browser must be, a test without one fails when it opens its page.
_may_skip = bool(_missing) and not os.environ.get("TRL_MINER_NEEDS_BROWSER")


def needs_browser(test: Any) -> Any:
    """Mark a test for the stage `.ci/run browser`, and skip it where Chromium or Playwright is
    missing."""
    return pytest.mark.browser(pytest.mark.skipif(_may_skip, reason=_reason)(test))


class OpenPage:
    """Playwright's page, with the `errors` that it had and the `requests` that it made for other
    addresses."""

    def __init__(self, page: Any, address: str):
        self.page, self.errors, self.requests = page, [], []
        page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._note(request.url, address))

    def _note(self, url: str, address: str) -> None:
        if url.split("#")[0] != address and not url.startswith(("data:", "blob:")):
            self.requests.append(url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def assert_quiet(self) -> None:
        """Assert that there was no error on the console, no uncaught one, and no request."""
        assert not self.errors, f"the page's errors: {self.errors}"
        assert not self.requests, f"the page asked for: {self.requests}"

    def wait_until(self, expression: str, seconds: float = 20.0) -> None:
        """Wait until a JavaScript expression is true. Playwright's own wait uses eval, which a page
        may forbid."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"not true within {seconds} s: {expression}"
            self.page.wait_for_timeout(20)

    def screenshot_as(self, name: str, folder: Path, **options: Any) -> Path:
        """Save a screenshot in the folder $TRL_MINER_SCREENSHOTS, or in `folder` if that is not
        set."""
        path = Path(os.environ.get("TRL_MINER_SCREENSHOTS") or folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, **options)
        return path


@contextlib.contextmanager
def open_page(path: str | Path, **options: Any) -> Iterator[OpenPage]:
    """Open a file in a browser without a network; `options` are of the browser's context:
    color_scheme="dark", ..."""
    if _missing:
        pytest.fail(f"TRL_MINER_NEEDS_BROWSER is set, and this {_reason}")
    address = Path(path).resolve().as_uri()
    with sync_playwright() as playwright:
        # root has no sandbox, and a container's /dev/shm is small
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        options = {"viewport": {"width": 1280, "height": 800}} | options
        page = browser.new_context(offline=True, **options).new_page()
        opened = OpenPage(page, address)
        page.goto(address)
        try:
            yield opened
        finally:
            browser.close()
