"""The page as a browser shows it: in both schemes, on a phone, with the script that tells values."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from made_run import WALL, made_run
from ronde.report.page import page
from ronde.report.run import read_run
from ronde.trace.events import write_event

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium"),
]

# Asks the page, and leaves the answers in it.
ASK = """
<script>
const answers = {};
const root = document.documentElement;
answers.wide = root.scrollWidth > window.innerWidth + 1;
answers.width = window.innerWidth;
answers.ground = getComputedStyle(document.body).backgroundColor;
answers.ink = getComputedStyle(document.body).color;
answers.small = [...document.querySelectorAll("body *")].filter((each) =>
  [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
  && !["SCRIPT", "STYLE", "TITLE"].includes(each.tagName.toUpperCase())
  && parseFloat(getComputedStyle(each).fontSize) < 12).length;
answers.flat = [...document.querySelectorAll("svg .line, svg rect")].filter((each) => {
  const style = getComputedStyle(each);
  const paint = each.tagName === "rect" ? style.fill : style.stroke;
  return paint === "none" || paint === answers.ground;
}).length;
answers.bare = [...document.querySelectorAll(".bar span, .meter span, .key")].filter((each) =>
  getComputedStyle(each).backgroundColor === "rgba(0, 0, 0, 0)").length;
const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
plot.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2, clientY: box.top}));
answers.tip = plot.querySelector(".tip").innerText;
answers.hidden = plot.querySelector(".tip").hidden;
plot.dispatchEvent(new PointerEvent("pointerleave"));
answers.hidden_again = plot.querySelector(".tip").hidden;
root.dataset.answers = JSON.stringify(answers);
</script>
"""

FRAME = """<!doctype html><meta charset="utf-8"><style>:root { color-scheme: light dark; }</style>
<iframe id="page" style="width: WIDTHpx; height: 1800px; border: 0"></iframe>
<script>
const page = document.getElementById("page");
page.onload = () => {
  const answers = page.contentDocument.documentElement.dataset.answers;
  if (answers) document.documentElement.dataset.answers = answers;
};
page.srcdoc = TEXT;
</script>
"""


def asked(folder: Path, *, width: int = 1100, dark: bool = False) -> dict[str, Any]:
    """What a browser says of the run's page."""
    text = page(read_run(folder)).replace("</body>", f"{ASK}</body>")
    # In a frame, because a window is no narrower than 500.
    frame = FRAME.replace("WIDTH", str(width)).replace("TEXT", json.dumps(text).replace("</", "<\\/"))
    shown = folder.parent / "page.html"
    shown.write_text(frame)
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1500,2000",
        f"--user-data-dir={folder.parent / 'profile'}", "--dump-dom", shown.as_uri(),
    ]  # fmt: skip
    if dark:
        command.insert(1, "--blink-settings=preferredColorScheme=0")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, "HOME": str(folder.parent)}
    )
    found = re.search(r'data-answers="([^"]*)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    return json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = made_run(tmp_path / "run", ranks=3, slow=1, script="a_long_folder/with_a_long_name/train.py")
    write_event(folder, "notice", "ranks have waited for rank 1 for 60 s at train.py:17, " * 4)
    error = {"time": WALL / 1e9 + 2, "kind": "script", "type": "ValueError", "message": "x" * 300}
    (folder / "rank-1.error.json").write_text(json.dumps(error))
    return folder


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_both_schemes_have_their_colours(folder: Path) -> None:
    light, dark = asked(folder), asked(folder, dark=True)
    assert brightness(light["ground"]) > 230 > 60 > brightness(light["ink"])
    assert brightness(dark["ground"]) < 40 < 200 < brightness(dark["ink"])
    for found in (light, dark):
        assert (found["flat"], found["bare"]) == (0, 0)


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_nothing_reaches_out_of_the_page_and_words_can_be_read(folder: Path, width: int) -> None:
    found = asked(folder, width=width)
    assert found["width"] == width
    assert not found["wide"]
    assert found["small"] == 0


def test_a_value_is_told_where_the_pointer_is(folder: Path) -> None:
    found = asked(folder)
    assert not found["hidden"]
    assert found["hidden_again"]
    step, value = re.fullmatch(r"step (\d+)\s+loss\s+([\d.e-]+)", found["tip"]).groups()  # pyright: ignore[reportOptionalMemberAccess]
    assert 140 <= int(step) <= 160
    assert 0.3 < float(value) < 0.5
