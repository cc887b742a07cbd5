"""The page: whole by itself, with nothing of the run that could act; and the commands that write it."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from pathlib import Path

import pytest

from made_run import made_run
from ronde.cli import main
from ronde.report.page import frozen_page, live_page, policy
from ronde.report.run import look_at_run
from ronde.trace.events import write_event

EVIL = '</script><img src=x onerror=alert(1)>"&.py'


class Tags(html.parser.HTMLParser):
    """What the page is made of; whether everything that is opened is closed."""

    VOID = frozenset(("meta", "link"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def shown(*folders: Path) -> str:
    return frozen_page([look_at_run(folder) for folder in folders])


def state(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="state">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    for text in (shown(made_run(tmp_path / "run", slow=1)), live_page()):
        tags = Tags(text)
        assert tags.open == []
        assert not {"img", "iframe", "object"} & set(tags.seen)
        bare = text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|url\(|@import|src=", bare)
        assert re.findall(r"<link[^>]*href=.{6}", text) == ['<link rel="icon" href="data:']


def test_only_its_own_script_and_style_act(tmp_path: Path) -> None:
    text = live_page()
    script = re.search(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy(live=True)
    assert "unsafe" not in policy(live=True)
    assert "connect-src" not in policy(live=False)
    assert policy(live=False) in shown(made_run(tmp_path / "run", steps=5))


def test_what_a_run_says_stays_data(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", script=EVIL)
    write_event(folder, "death", EVIL, rank=1)
    text = shown(folder)
    assert Tags(text).open == []
    assert "<img" not in text
    (run,) = state(text)["runs"]  # pyright: ignore[reportGeneralTypeIssues]
    assert run["title"] == EVIL


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_words_and_pictures_stand_out_from_the_ground() -> None:
    themes = re.findall(r":root \{(.*?)\}", live_page(), re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--([\w]+): (#[0-9a-f]{6});", theme))
        drawn = [*(f"c{place}" for place in range(8)), "data", "forward", "backward", "optimizer"]
        for name, least in [
            *((name, 4.5) for name in ("ink", "soft", "faint", "accent", "bad", "good", "warn")),
            *((name, 3.0) for name in (*drawn, "communication", "other")),
        ]:
            for ground in ("card", "ground"):
                assert contrast(colours[name], colours[ground]) >= least, (name, ground, theme)


def test_the_command_writes_the_page_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = made_run(tmp_path / "run", steps=20), made_run(tmp_path / "other", steps=20)
    for arguments, code in (
        ([str(folder)], 0),
        ([str(folder), "--out", str(tmp_path / "no" / "page.html")], 2),
        ([str(folder), str(other)], 2),
        ([str(folder), str(other), "--out", str(tmp_path / "both.html")], 0),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["report", *arguments])
        assert ended.value.code == code
    assert "add --out FILE" in capsys.readouterr().err
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert len(state((tmp_path / "both.html").read_text())["runs"]) == 2  # pyright: ignore[reportArgumentType]
    assert sorted(each.name for each in folder.iterdir() if each.name.endswith(".new")) == []


@pytest.mark.parametrize("command", ["top", "report"])
def test_a_directory_without_steps_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for arguments, word in (
        ([str(tmp_path)], "no rank has"),
        (["none"], "is not a directory"),
        ([], "no run under"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([command, *arguments])
        assert ended.value.code == 2
        assert word in capsys.readouterr().err


def test_the_newest_run_is_found_by_itself_and_any_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    name = "20261121-035133-5f0c2a"
    made_run(tmp_path / "ronde" / "runs" / name, steps=5)
    for arguments in ([], [name]):
        with pytest.raises(SystemExit) as ended:
            main(["top", "--once", *arguments])
        assert ended.value.code == 0
        assert "train.py" in capsys.readouterr().out
