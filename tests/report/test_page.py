"""The page: whole by itself, with nothing of the run left unescaped; and what it tells."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path

import pytest

from made_run import WALL, made_run
from ronde.cli import main
from ronde.report.page import page
from ronde.report.run import read_run
from ronde.trace.events import write_event

EVIL = '</script><img src=x onerror=alert(1)>"&.py'


class Tags(html.parser.HTMLParser):
    """What the page is made of; whether everything that is opened is closed."""

    VOID = frozenset(("meta", "line", "path", "rect", "br"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def shown(folder: Path) -> str:
    return page(read_run(folder))


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = shown(made_run(tmp_path / "run", slow=1))
    tags = Tags(text)
    assert tags.open == []
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import|src=|href=", text)
    assert {tag for tag, _ in tags.seen} & {"img", "link", "iframe", "object"} == set()


def test_pictures_have_labels(tmp_path: Path) -> None:
    tags = Tags(shown(made_run(tmp_path / "run")))
    pictures = [attributes for tag, attributes in tags.seen if tag == "svg"]
    assert len(pictures) == 4
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert attributes["aria-label"]
    bars = [attributes["aria-label"] for _, attributes in tags.seen if attributes.get("class") == "bar"]
    assert "rank 1: data 1 ms, forward 3 ms, backward 5 ms, optimizer 0.5 ms, other 0.5 ms" in bars


def test_what_a_run_says_is_escaped(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", script=EVIL)
    write_event(folder, "death", EVIL, rank=1)
    write_event(folder, '"><b>', EVIL)
    text = shown(folder)
    assert Tags(text).open == []
    assert "<img" not in text
    assert "onerror=alert(1)&gt;" in text
    for data in re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL):
        json.loads(data)


def test_a_straggler_is_named(tmp_path: Path) -> None:
    text = shown(made_run(tmp_path / "run", ranks=4, slow=2))
    assert "Rank 2 stands out: it came last to 75% of its collectives" in text
    assert "No rank stands out" in shown(made_run(tmp_path / "other", ranks=4))
    assert "One rank: nobody waits." in shown(made_run(tmp_path / "one", ranks=1))


def test_deaths_stand_among_the_events_and_in_the_pictures(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", ended=False)
    error = {"rank": 1, "time": WALL / 1e9 + 2, "kind": "script", "type": "ValueError"}
    error |= {"message": "no rows", "traceback": ""}
    (folder / "rank-1.error.json").write_text(json.dumps(error))
    run = read_run(folder)
    assert run.life == "failed"
    assert [each.life for each in run.ranks] == ["gone", "failed"]
    text = page(run)
    assert "rank 1: ValueError: no rows" in text
    assert text.count("<title>death: ValueError: no rows</title>") == 3


def test_a_loss_that_is_no_number_is_told(tmp_path: Path) -> None:
    assert "not a number at step 120" in shown(made_run(tmp_path / "run", nan_from=120))


def test_many_ranks_and_steps_make_no_large_page(tmp_path: Path) -> None:
    text = shown(made_run(tmp_path / "run", ranks=40, steps=200))
    assert len(text) < 400_000
    assert "32 of 40 ranks, those that stand out" in text
    text = shown(made_run(tmp_path / "long", ranks=1, steps=9000))
    assert len(text) < 200_000
    assert "stands for up to 4 steps" in text


def test_the_command_writes_the_page_where_it_is_told(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", steps=20)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder)])
    assert ended.value.code == 0
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder), "--out", str(tmp_path / "no" / "page.html")])
    assert ended.value.code == 2
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
