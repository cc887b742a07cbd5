"""Every tool works under every plan, or is refused by name, as the table says; `make tools` makes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.warm import WarmHost
from tools import table
from tools.cell import DIED, REFUSED, Cell
from tools.collect import cells
from tools.plans import PLANS
from tools.rows import TOGETHER, TOOLS
from tools.scripts import SCRIPTS
from tools.trial import Trial

TABLE = table.read()
# Runs that try many tools at once, and tools with processes of their own; `make soak` tries all.
EVERY_DAY: dict[tuple[str, str], tuple[str, ...]] = {
    ("zero1", "bare"): tuple(TOGETHER),
    ("pipeline=2", "loader"): ("--checkpoint", "--publish", "elastic"),
    ("geo", "loader"): ("several hosts", "verify"),
}


def test_every_tool_was_tried_under_every_plan() -> None:
    assert set(TABLE) == {(plan, tool, script) for plan in PLANS for tool in TOOLS for script in SCRIPTS}


def test_nothing_dies() -> None:
    assert [cell.line for cell in TABLE.values() if cell.end == DIED] == []


def test_a_refusal_names_what_it_is_about_and_what_is_legal() -> None:
    """Both are settings that the user has typed, or what they stand for."""
    for cell in TABLE.values():
        if cell.end == REFUSED:
            items = {cell.plan, *PLANS[cell.plan].plan.inexact_because, "state=server"}
            assert any(item.split("=")[0] in cell.sentence for item in items), cell.line
            assert ";" in cell.sentence, cell.line


def test_the_page_shows_the_table() -> None:
    date = table.PAGE.read_text().split("by `make tools` on ")[1][:10]
    assert table.PAGE.read_text() == table.page(TABLE, date)


@pytest.mark.parametrize(("plan", "script"), EVERY_DAY)
def test_tools_end_as_the_table_says(tmp_path: Path, host: WarmHost, plan: str, script: str) -> None:
    trial = Trial(PLANS[plan], script, tmp_path, host.start)
    found = list(cells(trial, EVERY_DAY[plan, script]))
    assert [cell.line for cell in found if cell != TABLE.get(cell.place, cell) or cell.end == DIED] == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("plan", PLANS)
def test_every_tool_ends_as_the_table_says(tmp_path: Path, host: WarmHost, plan: str, script: str) -> None:
    found = list(cells(Trial(PLANS[plan], script, tmp_path, host.start), TOOLS))
    assert [cell.line for cell in found if cell != TABLE.get(cell.place, cell) or cell.end == DIED] == []


def test_what_differs_between_runs_is_no_part_of_a_sentence() -> None:
    cell = Cell.refused("ps", "-m", "bare", "rank 3 of tensor=2\n needs 1.5 s, in /tmp/a/b; take --plan ddp")
    assert cell.sentence == "rank N of tensor=2 needs N s, in PATH; take --plan ddp"
    assert Cell.parse(cell.line) == cell
