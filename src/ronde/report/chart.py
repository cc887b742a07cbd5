"""Charts as HTML and SVG, written by hand, without library and network.

Lines are drawn in an SVG that is stretched to its box; words are HTML next to it, so that they keep their
size on a phone. A few lines of script (`style.SCRIPT`) show the values at the pointer; without it, and for
screen readers, the caption describes the picture.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

__all__ = ["Line", "Mark", "line_chart", "meter", "nice_ticks", "stacked_bars", "stacked_columns"]

_SIZE = 1000
_TICKS = 4
# Ratio of the largest to the smallest value from which a line is drawn on a logarithmic scale.
_LOGARITHMIC = 100.0

Words = Callable[[float], str]


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: name, colour, and points by growing x.

    The colour is a class of the page's style.
    """

    name: str
    colour: str
    points: Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """An event at `x`; its kind is a class of the page's style."""

    x: float
    text: str
    kind: str = ""


def nice_ticks(low: float, high: float, most: int = _TICKS) -> list[float]:
    """Return round numbers between the two, at most about `most`.

    >>> nice_ticks(0, 97), nice_ticks(0, 1)
    ([0.0, 20.0, 40.0, 60.0, 80.0], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.7)
    first = math.ceil(low / step - 1e-9)
    return [round(each * step, 12) for each in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return the place of a value, from 0 to 1."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return (value - low) / (high - low) if high > low else 0.5

    def ticks(self, unit: float = 1) -> list[float]:
        """Return round numbers for ticks, in multiples of `unit`."""
        if not self.logarithmic:
            return [unit * each for each in nice_ticks(self.low / unit, self.high / unit)]
        powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
        ticks = [10.0**power for power in powers]
        return ticks[:: max(1, len(ticks) // (_TICKS + 1))] or [self.low, self.high]


def _unit(nbytes: float) -> float:
    """Return the unit, in bytes, for the display of `nbytes` bytes."""
    return 1024.0 ** max(0, math.floor(math.log(max(nbytes, 1), 1024)))


def _scale(values: Sequence[float], *, from_zero: bool) -> _Scale:
    low, high = min(values), max(values)
    if not from_zero and low > 0 and high / low > _LOGARITHMIC:
        return _Scale(low, high, True)
    low = min(0.0, low) if from_zero else low
    if high == low:
        high = low + (abs(low) or 1.0)
    return _Scale(low, high + (high - low) * 0.06)


def line_chart(
    lines: Sequence[Line],
    *,
    caption: str,
    across: Words,
    up: Words,
    x_name: str,
    from_zero: bool = True,
    binary: bool = False,
    marks: Sequence[Mark] = (),
) -> str:
    """Draw a figure of lines over one another.

    Args:
        caption: a sentence on the figure's content.
        across, up: functions from values on the axes to their words.
        from_zero: whether the upward axis begins with 0; else it begins with the least value, and is
            logarithmic if the values span many orders of magnitude.
        binary: whether values are bytes, with round numbers of KiB, MiB and so on.
        marks: events, drawn as upright lines.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return _nothing(caption)
    xs = [x for line in lines for x, _ in line.points]
    x_scale = _Scale(min(xs), max(xs))
    y_scale = _scale([y for line in lines for _, y in line.points], from_zero=from_zero)
    drawn = "".join(
        f'<path class="line {line.colour}" d="{_path(line.points, x_scale, y_scale)}"/>' for line in lines
    )
    drawn += _upright(marks, x_scale)
    data = {
        "x": x_name,
        "lines": [
            {
                "name": line.name,
                "colour": line.colour,
                "points": [[round(_SIZE * x_scale.place(x), 1), across(x), up(y)] for x, y in line.points],
            }
            for line in lines
        ],
    }
    return _figure(caption, _legend([(line.name, line.colour) for line in lines]), drawn, _Axes(
        [(x_scale.place(tick), across(tick)) for tick in x_scale.ticks()],
        [(y_scale.place(tick), up(tick)) for tick in y_scale.ticks(_unit(y_scale.high) if binary else 1)],
        x_name,
        "logarithmic" if y_scale.logarithmic else "",
    ), data)  # fmt: skip


def stacked_columns(
    columns: Sequence[tuple[float, Mapping[str, float]]],
    colours: Mapping[str, str],
    *,
    caption: str,
    across: Words,
    x_name: str,
    marks: Sequence[Mark] = (),
) -> str:
    """Draw a figure of shares over time, one column up to each x.

    The parts of a column add up to 1 at most.
    """
    if not columns:
        return _nothing(caption)
    width = _SIZE / len(columns)
    drawn: list[str] = []
    for place, (_, shares) in enumerate(columns):
        top = float(_SIZE)
        for part, share in shares.items():
            height = share * _SIZE
            if height > 0.5:
                drawn.append(
                    f'<rect class="{colours[part]}" x="{place * width:.1f}" y="{top - height:.1f}" '
                    f'width="{width + 0.6:.1f}" height="{height:.1f}"/>'
                )
            top -= height
    end = columns[-1][0]
    scale = _Scale(0.0, end)
    drawn.append(_upright(marks, scale))
    data = {
        "x": x_name,
        "lines": [
            {
                "name": part,
                "colour": colours[part],
                "points": [
                    [round((place + 0.5) * width, 1), across(at), f"{shares[part]:.0%}"]
                    for place, (at, shares) in enumerate(columns)
                ],
            }
            for part in columns[0][1]
        ],
    }
    axes = _Axes(
        [(scale.place(tick), across(tick)) for tick in scale.ticks()],
        [(each / 4, f"{each / 4:.0%}") for each in (0, 2, 4)],
        x_name,
        "",
    )
    return _figure(
        caption, _legend([(part, colours[part]) for part in columns[0][1]]), "".join(drawn), axes, data
    )


def stacked_bars(
    rows: Sequence[tuple[str, Mapping[str, float]]], colours: Mapping[str, str], *, caption: str, words: Words
) -> str:
    """Draw a figure of horizontal bars: for each row name, parts and sum."""
    longest = max((sum(parts.values()) for _, parts in rows), default=0.0)
    if not longest:
        return _nothing(caption)
    lines: list[str] = []
    for name, parts in rows:
        pieces = "".join(
            f'<span class="{colours[part]}" style="width:{100 * value / longest:.2f}%" '
            f'title="{escape(part)}: {escape(words(value))}"></span>'
            for part, value in parts.items()
            if value > 0
        )
        told = ", ".join(f"{part} {words(value)}" for part, value in parts.items() if value > 0)
        lines.append(
            f'<div class="row"><span class="name">{escape(name)}</span>'
            f'<div class="bar" role="img" aria-label="{escape(f"{name}: {told}")}">{pieces}</div>'
            f'<span class="sum">{escape(words(sum(parts.values())))}</span></div>'
        )
    used = [part for part in rows[0][1] if any(parts.get(part, 0) > 0 for _, parts in rows)]
    legend = _legend([(part, colours[part]) for part in used])
    head = f"<figcaption>{escape(caption)}</figcaption>{legend}"
    return f'<figure>{head}<div class="bars">{"".join(lines)}</div></figure>'


def meter(share: float, colour: str) -> str:
    """Draw a small bar for a table cell, next to its number."""
    width = max(0.0, min(1.0, share)) * 100
    filled = f'<span class="{colour}" style="width:{width:.1f}%"></span>'
    return f'<span class="meter" aria-hidden="true">{filled}</span>'


@dataclasses.dataclass(frozen=True, slots=True)
class _Axes:
    across: Sequence[tuple[float, str]]
    up: Sequence[tuple[float, str]]
    x_name: str
    note: str


def _figure(caption: str, legend: str, drawn: str, axes: _Axes, data: object) -> str:
    grid = "".join(
        f'<line class="grid" x1="0" x2="{_SIZE}" y1="{y:.1f}" y2="{y:.1f}"/>'
        for place, _ in axes.up
        for y in [_SIZE * (1 - place)]
    )
    up = "".join(
        f'<span style="bottom:{100 * place:.2f}%">{escape(words)}</span>' for place, words in axes.up
    )
    across = "".join(
        f'<span style="left:{100 * place:.2f}%"{_edge(place)}>{escape(words)}</span>'
        for place, words in axes.across
    )
    note = f'<span class="scale">{escape(axes.note)} scale</span>' if axes.note else ""
    return (
        f"<figure><figcaption>{escape(caption)}{note}</figcaption>{legend}"
        f'<div class="chart"><div class="up" aria-hidden="true">{up}</div>'
        f'<div class="plot"><svg viewBox="0 0 {_SIZE} {_SIZE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(caption)}">{grid}{drawn}</svg>'
        f'<div class="cursor" hidden></div><div class="tip" hidden></div>'
        f'<script type="application/json">{_json(data)}</script></div>'
        f'<div class="across" aria-hidden="true">{across}</div>'
        f'<div class="unit" aria-hidden="true">{escape(axes.x_name)}</div></div></figure>'
    )


def _upright(marks: Sequence[Mark], scale: _Scale) -> str:
    """Draw upright lines at the marks on the scale."""
    lines: list[str] = []
    for mark in marks:
        if scale.low <= mark.x <= scale.high:
            x = _SIZE * scale.place(mark.x)
            lines.append(
                f'<line class="mark {mark.kind}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_SIZE}">'
                f"<title>{escape(mark.text)}</title></line>"
            )
    return "".join(lines)


def _edge(place: float) -> str:
    """Return the attribute that keeps words at an end of an axis within it."""
    return ' class="first"' if place < 0.04 else ' class="last"' if place > 0.96 else ""


def _nothing(caption: str) -> str:
    told = '<p class="none">Nothing was recorded.</p>'
    return f"<figure><figcaption>{escape(caption)}</figcaption>{told}</figure>"


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    if len(entries) < 2:
        return ""
    items = "".join(
        f'<li><span class="key {colour}" aria-hidden="true"></span>{escape(name)}</li>'
        for name, colour in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _path(points: Sequence[tuple[float, float]], x_scale: _Scale, y_scale: _Scale) -> str:
    places = [
        (_SIZE * x_scale.place(x), _SIZE * (1 - max(0.0, min(1.0, y_scale.place(y))))) for x, y in points
    ]
    if len(places) == 1:  # a single point would be invisible
        x, y = places[0]
        return f"M0 {y:.1f}L{_SIZE} {y:.1f}" if x_scale.low == x_scale.high else f"M{x:.1f} {y:.1f}h1"
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _json(data: object) -> str:
    """Encode data for a script element, so that it cannot end the element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
