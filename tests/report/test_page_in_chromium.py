"""The page as a browser shows it: both schemes, a phone, keyboard and names; and live, over a server."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from made_run import WALL, made_run
from ronde.report.page import write
from ronde.report.run import look_at_run
from ronde.trace.events import write_event

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium"),
]
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: pip install playwright")

SMALL = """() => [...document.querySelectorAll("body *")].filter((each) =>
  [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
  && !["SCRIPT", "STYLE", "NOSCRIPT"].includes(each.tagName.toUpperCase()) && each.getClientRects().length
  && parseFloat(getComputedStyle(each).fontSize) < 12).map((each) => each.outerHTML)"""
BARE = """() => [...document.querySelectorAll(".line, .area, .key, .bar span, .meter span, .dot")]
  .filter((each) => {
  const style = getComputedStyle(each), name = each.getAttribute("class");
  const paint = /line/.test(name) ? style.stroke : /area/.test(name) ? style.fill : style.backgroundColor;
  return paint === "none" || paint === "rgba(0, 0, 0, 0)";
}).length"""
NAMELESS = """() => [...document.querySelectorAll(
    "[tabindex], [role], section, table, summary, input, button, a, nav")]
  .filter((each) => !each.getAttribute("aria-label") && !each.getAttribute("aria-labelledby")
    && !each.textContent.trim()).map((each) => each.outerHTML)"""


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        yield driver


@pytest.fixture
def browser(started: Any) -> Iterator[Any]:
    made = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
    yield made
    made.close()


@contextmanager
def opened(browser: Any, address: str, *, width: int = 1100, scheme: str = "light") -> Iterator[Any]:
    """The page; nothing may be wrong by the browser's console."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.set_default_timeout(20_000)
    page.goto(address)
    page.wait_for_selector("h1")
    yield page
    page.close()
    assert [line for line in wrong if "ERR_" not in line] == []  # a server that is away is such a line


def a_run(folder: Path) -> Path:
    made_run(folder, ranks=3, slow=1, script="a_long_folder/with_a_long_name/train.py")
    write_event(folder, "notice", "ranks have waited for rank 1 for 60 s at train.py:17, " * 4)
    write_event(folder, "checkpoint", "step 100 is saved", step=100, held_up=0.01, nbytes=1 << 20, folder="")
    error = {"time": WALL / 1e9 + 2, "kind": "script", "type": "ValueError", "message": "x" * 300}
    (folder / "rank-1.error.json").write_text(json.dumps(error))
    return folder


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("frozen")
    write([look_at_run(a_run(folder / "run"))], folder / "page.html")
    return (folder / "page.html").as_uri()


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@pytest.mark.parametrize("width", [390, 800, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(browser: Any, frozen: str, width: int, scheme: str) -> None:
    with opened(browser, frozen, width=width, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(SMALL) == []
        assert page.evaluate(BARE) == 0
        ground, ink = page.evaluate(
            "() => (({backgroundColor, color}) => [backgroundColor, color])(getComputedStyle(document.body))"
        )
        light, dark = (ground, ink) if scheme == "light" else (ink, ground)
        assert brightness(light) > 200 > 60 > brightness(dark)


def test_everything_has_a_name_and_charts_have_tables(browser: Any, frozen: str) -> None:
    with opened(browser, frozen) as page:
        assert page.evaluate(NAMELESS) == []
        charts = page.locator(".plot, .bars").count()
        assert charts == page.locator("details.numbers").count() == 7
        for details in page.locator("details.numbers").all():
            details.locator("summary").click()
            details.locator("tbody tr").first.wait_for()
            assert details.locator("tbody tr").count() >= 1
        assert page.get_by_role("slider", name="Loss").count() == 1
        assert page.get_by_role("table", name="Ranks and hosts").count() == 1


def test_the_keyboard_reaches_every_point(browser: Any, frozen: str) -> None:
    with opened(browser, frozen) as page:
        order: list[str] = []
        for _ in range(60):
            page.keyboard.press("Tab")
            name = page.evaluate("document.activeElement.getAttribute('aria-label')")
            if name in order or name is None:
                break
            order.append(name)
        assert order[:4] == ["Loss", "Numbers of: Loss", "Throughput", "Numbers of: Throughput"]
        loss = page.get_by_role("slider", name="Loss")
        loss.focus()
        told = loss.get_attribute("aria-valuetext")
        page.keyboard.press("ArrowLeft")
        assert loss.get_attribute("aria-valuetext") != told
        page.keyboard.press("Home")
        assert loss.get_attribute("aria-valuetext").startswith("step 1: loss 2.2")
        assert loss.locator(".tip").is_visible()
        page.keyboard.press("Escape")
        assert not loss.locator(".tip").is_visible()


def test_a_value_is_told_where_the_pointer_is(browser: Any, frozen: str) -> None:
    with opened(browser, frozen) as page:
        plot = page.get_by_role("slider", name="Loss")
        plot.hover()
        tip = plot.locator(".tip").inner_text()
        step, value = re.fullmatch(r"step (\d+)\s+loss\s+([\d.e-]+)", tip).groups()  # pyright: ignore[reportOptionalMemberAccess]
        assert 140 <= int(step) <= 160
        assert 0.3 < float(value) < 0.5
        page.mouse.move(0, 0)
        assert not plot.locator(".tip").is_visible()


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[int]:
    import uvicorn

    from ronde.report.server.application import Readers, application
    from ronde.report.server.runs import Runs

    with (
        closing(socket.socket()) as listening,
        closing(Readers(Runs(folder), every=0.1)) as readers,
    ):
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen()
        config = uvicorn.Config(
            application(readers), log_level="critical", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def test_runs_are_chosen_and_laid_over_each_other(browser: Any, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        made_run(tmp_path / name, steps=40)
    with serving(tmp_path) as port, opened(browser, f"http://127.0.0.1:{port}/", width=390) as page:
        compare = page.get_by_role("button", name="Compare")
        assert compare.is_disabled()
        page.get_by_role("checkbox", name="train.py, a").check()
        page.get_by_role("checkbox", name="train.py, c").check()
        made_run(tmp_path / "d", steps=40, script="new.py")
        page.get_by_role("link", name="new.py").wait_for()  # chosen boxes stay when a run is added
        compare.click()
        page.get_by_role("heading", name="Runs over each other").wait_for()
        assert page.locator("#loss .line").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate(NAMELESS) == []


def test_a_live_page_keeps_the_readers_place_and_comes_back(browser: Any, tmp_path: Path) -> None:
    folder = made_run(tmp_path / "a", steps=40)
    with serving(tmp_path) as port:
        context = opened(browser, f"http://127.0.0.1:{port}/?run=a")
        page = context.__enter__()
        page.locator("#loss summary").click()
        page.get_by_role("slider", name="Memory").focus()
        page.keyboard.press("Home")
        write_event(folder, "notice", "something new")
        page.get_by_text("something new").wait_for()
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Memory"
        assert page.get_by_role("slider", name="Memory").get_attribute("aria-valuenow") == "0"
        assert page.locator("#loss details table").is_visible()
    page.get_by_text("reconnecting").wait_for()
    write_event(folder, "notice", "while the server was away")
    with serving(tmp_path, port):
        page.get_by_text("while the server was away").wait_for()
        assert page.get_by_role("status").inner_text() == "live"
        context.__exit__(None, None, None)
