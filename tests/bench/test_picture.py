from __future__ import annotations

from pathlib import Path

import pytest

from bench.samples import memory_report, report, result
from ronde.bench.picture import draw, save
from ronde.bench.report import Report
from ronde.cli import plot_option
from ronde.cli.plot_option import check_drawable
from ronde.errors import UsageError

DP = report(
    result("mlp", ronde=[110, 90, 98], ddp=[100, 100, 100], fabric=[50, 50, 50]),
    result("gpt", ronde=[100, 100, 100], ddp=[80, 80, 80], fabric=[100, 100, 100]),
)
OVERHEAD = report(
    result("tiny", ronde=[50], plain=[100]), result("start-up", ronde=[50], plain=[100]), kind="overhead"
)


def bars(drawn: Report) -> dict[tuple[str, str], list[float]]:
    """Lengths of bars by title and axis of the panels."""
    pytest.importorskip("matplotlib")
    return {
        (axes.get_title(), axes.get_xlabel()): [bar.get_width() for bar in axes.patches]
        for axes in draw(drawn).axes
        if axes.get_visible()
    }


def test_a_panel_for_each_workload_has_a_bar_for_each_peer() -> None:
    drawn = bars(DP)
    assert list(drawn) == [("mlp", "ratio x"), ("gpt", "ratio x")]
    assert list(drawn.values()) == [pytest.approx([0.98, 1.96]), pytest.approx([1.25, 1.0])]
    labels = [label.get_text() for label in draw(DP).axes[0].get_yticklabels()]
    assert labels == ["DDP", "Fabric"]


def test_the_limit_has_a_panel_with_a_bar_for_each_contender() -> None:
    measured = report(result("mlp", ronde=[90], ddp=[50], apart=[100]))
    assert bars(measured)["mlp", "of the limit x"] == pytest.approx([0.9, 0.5, 1.0])


def test_steps_and_start_up_have_an_axis_each() -> None:
    drawn = bars(OVERHEAD)
    assert drawn["tiny", "added us/step"] == pytest.approx([100_000])
    assert drawn["start-up", "added to the whole run s"] == pytest.approx([1.0])


def test_memory_is_drawn_in_mebibytes() -> None:
    drawn = bars(memory_report())
    assert drawn["zero1", "state MiB"] == pytest.approx([12000 / 2**20, 13200 / 2**20])


def test_a_report_without_drawn_quantities_is_refused() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match="a report of dp has nothing to draw; leave out --plot"):
        draw(report(result("mlp", ronde=[1], ddp=[1]), quantities={}))


@pytest.mark.parametrize(("name", "begins"), [("x.png", b"\x89PNG"), ("x.svg", b"<?xml"), ("x.pdf", b"%PDF")])
def test_a_picture_is_written(name: str, begins: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save(DP, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_other_formats_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--plot x.txt does not end in .png, .svg, .pdf"):
        check_drawable(Path("x.txt"))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot_option.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'ronde\[plot\]'"):
        check_drawable(Path("x.png"))
