"""Every script ends as the table says; `make ends` makes it anew and shows what differs."""

from __future__ import annotations

from typing import Any

import pytest

from ends import table
from ends.collect import Collector, names
from ends.end import End, finished, refused
from support.warm import WarmHost

# Some of each list and of each end, among the quickest; `make soak` runs all.
EVERY_DAY = {
    "hazards/backward/hook inside a body",
    "hazards/backward/reads a value",
    "hazards/hooks/parameter hook after forward",
    "hazards/kept/instance norm",
    "hazards/kept/lazy layer",
    "hazards/numbers/annealed argument",
    "hazards/outside/vmap",
    "hazards/rows/tiny gate",
    "hazards/second axis/as many layers as steps",
    "parity/classifier",
    "parity/no_optimizer",
    "public/gcn",
}


def test_every_script_has_a_line() -> None:
    assert set(table.read()) == set(names())
    assert set(names()) >= EVERY_DAY


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERY_DAY else pytest.mark.soak) for name in names()]
)
def test_a_script_ends_as_the_table_says(name: str, ranks: Any, host: WarmHost) -> None:
    end = Collector(lambda *task: ranks(2, *task), host.start).end(name)
    if end is None:
        pytest.skip(f"{name} needs a package that is not installed")
    assert not table.difference(table.read(), end)


def test_an_end_is_told_by_what_was_cut_and_what_is_said() -> None:
    parts = "Net runs in parts in 3 of 10 calls, not as one piece: its rows meet"
    assert finished("a", {"Net": 3}, []).end == "one piece"
    assert finished("a", {}, ["nothing was cut: ..."]).end == "replicated"
    assert finished("a", {"Net": 7, "Linear": 2}, [parts]) == End(
        "a",
        "parts",
        "Linear: one piece, Net: one piece and parts",
        ("Net runs in parts in N of N calls, not as one piece: its rows meet",),
    )
    assert finished("a", {"Net": 3}, [], right=False).end == "wrong"


def test_sentences_are_stable() -> None:
    end = refused("a", "x of GPT2 | at 0x7f12\n took 1.5 s in /tmp/a/b.py, [3, -4e-5], " + "word " * 100)
    assert len(end.sentences[0]) == 150
    assert end.sentences[0].startswith("x of GPT2 / at ADDRESS took N s in PATH, [N, N], word")
    assert End.parse(end.line) == end


def test_what_differs_is_shown_as_in_a_diff() -> None:
    one, other = finished("a", {"Net": 1}, []), finished("a", {}, [])
    assert table.difference({"a": one}, one) == []
    assert table.difference({"a": one}, other) == ["-a\tone piece\tNet: one piece\t", "+a\treplicated\t\t"]
    assert table.difference({}, other) == ["+a\treplicated\t\t"]
