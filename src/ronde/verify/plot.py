"""Draws a proof: losses in plain python and on ranks, below them their difference."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ronde.errors import UsageError
from ronde.verify.curves import GRADIENTS, Curve
from ronde.verify.proof import Proof

__all__ = ["check", "draw", "figure"]

SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#1b6ca8", "#c8553d", "#5b8c5a")
GREY = "#777777"
NAME_LENGTH = 60


def check(path: Path) -> None:
    """Refuse an impossible picture before minutes are spent on the proof.

    Raises:
        UsageError: the kind of picture is unknown, the place unwritable, or matplotlib missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"--plot {path} is not one of {', '.join(SUFFIXES)}; try --plot {path.stem or 'loss'}.png [R620]"
        )
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.absolute().parent}; make it first [R620]")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib; pip install 'ronde[plot]' [R620]")


def draw(proof: Proof, path: Path) -> None:
    """Write the picture of a proof.

    Raises:
        UsageError: the proof has no curve, since the script took no step and read no number.
    """
    if not proof.curves:
        raise UsageError(
            f"{proof.job.script} read no number and took no optimizer step that both runs share, so there is "
            "nothing to plot; leave --plot out [R620]"
        )
    figure(proof).savefig(path)


def figure(proof: Proof) -> Any:
    """Return the picture as a figure of matplotlib: values above, their differences below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    made = Figure(figsize=(8, 6), dpi=150, layout="constrained")
    FigureCanvasAgg(made)
    above, below = made.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for curve, colour in zip(proof.curves, COLOURS, strict=False):
        _values(above, curve, colour, proof.ranks)
    _differences(below, proof.curves)
    above.set_title(_title(proof), fontsize=11, loc="left")
    norms = all(curve.name == GRADIENTS for curve in proof.curves)
    above.set_ylabel(GRADIENTS if norms else "value read by the script")
    made.legend(loc="outside lower left", frameon=False, fontsize=8)
    below.set_xlabel("optimizer steps")
    below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for axes in (above, below):
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return made


def _title(proof: Proof) -> str:
    job = proof.job
    worst = max(curve.worst for curve in proof.curves)
    return (
        f"{Path(job.script).name} on {proof.ranks} ranks against plain python\n"
        f"plan {job.plan}, {proof.dtype}, {proof.steps} optimizer steps; largest difference {worst:.1e}"
    )


def _values(axes: Any, curve: Curve, colour: str, ranks: int) -> None:
    """Draw plain python as a broad band, and ranks as a thin line. Where they agree both are seen."""
    name = curve.name if len(curve.name) <= NAME_LENGTH else curve.name[: NAME_LENGTH - 3] + "..."
    name = name.replace("$", r"\$")  # no formula
    marker = "o" if len(curve.steps) < 30 else ""
    axes.plot(curve.steps, curve.plain, color=colour, alpha=0.35, linewidth=5, label=f"plain python: {name}")
    axes.plot(
        curve.steps,
        curve.ranks,
        color=colour,
        linewidth=1.2,
        marker=marker,
        markersize=3,
        label=f"{ranks} ranks",
    )


def _differences(axes: Any, curves: Sequence[Curve]) -> None:
    """Draw differences on a logarithmic axis.

    Zero has no place there: it is drawn at the lower edge, hollow.
    """
    axes.set_yscale("log")
    positive = [value for curve in curves for value in curve.differences if value > 0]
    limits = [curve.allowed for curve in curves if curve.allowed > 0]
    lowest = min(positive, default=min(limits, default=1.0) / 1e6) / 3
    for curve, colour in zip(curves, COLOURS, strict=False):
        points = list(zip(curve.steps, curve.differences, strict=True))
        some = [point for point in points if point[1] > 0]
        none = [(step, lowest) for step, value in points if value <= 0]
        if some:
            axes.plot(*zip(*some, strict=True), color=colour, linestyle="", marker="o", markersize=3.5)
        if none:
            axes.plot(
                *zip(*none, strict=True),
                color=colour,
                linestyle="",
                marker="o",
                markersize=4,
                fillstyle="none",
            )
        if curve.allowed > 0:
            axes.axhline(curve.allowed, color=colour, linewidth=1, linestyle=":")
    if limits:
        place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        axes.annotate("allowed", (1, max(limits)), color=GREY, fontsize=8, **place)
    if len(positive) < sum(len(curve.differences) for curve in curves):
        axes.set_title("hollow: equal to the bit", fontsize=8, color=GREY, loc="right", pad=3)
    axes.set_ylim(lowest / 2, max([*positive, *limits], default=1.0) * 5)
    axes.set_ylabel("difference")
