from __future__ import annotations

from pathlib import Path

import pytest

from bench.samples import report, result
from ronde.bench.picture import draw, panels, save
from ronde.bench.report import Report
from ronde.cli import plot_option
from ronde.cli.plot_option import check_drawable
from ronde.errors import UsageError

DP = report(
    result("mlp", ronde=[110, 90, 98], ddp=[100, 100, 100], fabric=[50, 50, 50]),
    result("gpt", ronde=[100, 100, 100], ddp=[80, 80, 80], fabric=[100, 100, 100]),
)
OVERHEAD = report(
    result("tiny", ronde=[50], plain=[100]),
    result("start-up", ronde=[50], plain=[100]),
    kind="overhead",
    ranks=1,
    threads=None,
)


def heights(drawn: Report) -> list[list[float]]:
    """Of the bars, panel by panel."""
    pytest.importorskip("matplotlib")
    return [[bar.get_height() for group in axes.containers for bar in group] for axes in bars_only(drawn)]


def bars_only(drawn: Report) -> list:
    from matplotlib.container import BarContainer

    figure = draw(drawn)
    for axes in figure.axes:
        axes.containers[:] = [each for each in axes.containers if isinstance(each, BarContainer)]
    return figure.axes


def test_a_bar_for_each_workload_and_peer() -> None:
    (panel,) = panels(DP)
    assert [(bar.workload, bar.series) for bar in panel.bars] == [
        ("mlp", "DDP"),
        ("mlp", "Fabric"),
        ("gpt", "DDP"),
        ("gpt", "Fabric"),
    ]
    assert panel.level == 1.0


def test_heights_are_medians_of_ratios() -> None:
    (drawn,) = heights(DP)
    assert drawn == pytest.approx([0.98, 1.25, 1.96, 1.0])  # DDP's, then Fabric's


def test_steps_and_start_up_have_an_axis_each() -> None:
    assert [panel.axis for panel in panels(OVERHEAD)] == [
        "microseconds a step, over plain python",
        "seconds, over plain python",
    ]
    steps, start = heights(OVERHEAD)
    assert steps == pytest.approx([100_000])
    assert start == pytest.approx([1.0])


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
