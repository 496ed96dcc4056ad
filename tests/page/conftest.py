import os
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

CHROMIUM = os.environ.get("COPPICE_CHROMIUM", "/usr/bin/chromium")


def pytest_addoption(parser):
    parser.addoption("--screenshots", action="store_true", help="write docs/page*.png")


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A tab, and what went wrong in it."""

    def __init__(self, browser, url, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1360, "height": 900}} | options)
        self.page = self.context.new_page()
        self.url = url
        self.closed = False
        self.complaints = []
        self.elsewhere = []
        self.page.on("console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: request.url.startswith((url, "data:")) or self.elsewhere.append(request.url))
        self.page.goto(url + "/")

    def wait(self, script, argument=None):
        """Until the script's value is true; returns it."""
        return self.page.wait_for_function(script, arg=argument, timeout=60_000).json_value()

    def live(self):
        self.page.locator("#status.live").wait_for(timeout=60_000)
        return self

    def close(self):
        """While the server is there: the browser complains when that goes first."""
        if self.closed:
            return
        self.closed = True
        self.context.close()
        assert self.complaints == []
        assert self.elsewhere == []


@pytest.fixture
def visit(browser):
    """Opens pages. None may complain in the console, or ask for anything elsewhere."""
    visits = []

    def open_page(url, **options):
        visits.append(Visit(browser, url, **options))
        return visits[-1]

    yield open_page
    for each in visits:
        each.close()
