"""`ronde report`: a run as one self-contained HTML page without network access."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from ronde import __version__
from ronde.report.chart import Line, Mark, line_chart, meter, stacked_bars, stacked_columns
from ronde.report.run import Life, RankRun, RunState
from ronde.report.series import (
    PARTS,
    Straggling,
    by_phase,
    by_route,
    losses,
    memory,
    over_time,
    stragglers,
    throughput,
)
from ronde.report.style import SCRIPT, STYLE
from ronde.trace.memory import show_bytes
from ronde.trace.number_format import show_duration, show_number, show_share
from ronde.trace.pace import pace_of, steady
from ronde.trace.step_file import StepRecord

__all__ = ["page", "write"]

_LIVES: dict[Life, str] = {
    "runs": "running", "ended": "ended", "failed": "failed", "gone": "gone without a word",
}  # fmt: skip
_COLOURS = {part: f"p-{part}" for part in PARTS}
_LINES = 8
_ROWS = 32
_ENDS = {"death", "restart", "checkpoint", "notice"}


def page(run: RunState) -> str:
    """Return the whole page as text, with values of the run escaped."""
    title = str(run.start.get("script", "")) or run.path.name
    body = "".join(
        (
            _header(run, title),
            _tiles(run),
            _section("Loss", _loss(run)),
            _pair(_section("Throughput", _throughput(run)), _section("Memory", _memory(run))),
            _section("Where the time goes, rank by rank", _phases(run)),
            _section("Where the time goes, over the run", _phases_over_time(run)),
            _pair(
                _section("Who keeps others waiting", _stragglers(run)),
                _section("Communication", _routes(run)),
            ),
            _section("Events", _events(run)),
            _section("Ranks", _ranks(run)),
            _footer(run),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
        f"<title>{escape(title)} - ronde</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _pair(left: str, right: str) -> str:
    return f'<div class="pair">{left}{right}</div>'


def _header(run: RunState, title: str) -> str:
    first = run.ranks[0].steps
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first.wall / 1e9))
    hosts = len({each.steps.host for each in run.ranks})
    facts = [f"plan {run.start['plan']}" if run.start.get("plan") else ""]
    facts.append(
        f"{first.world_size} rank{'s' * (first.world_size != 1)} on {hosts} host{'s' * (hosts != 1)}"
    )
    facts.append(f"{run.start['device']}" if run.start.get("device") else "")
    facts.append(f"seed {run.start['seed']}" if "seed" in run.start else "")
    facts += [f"begun {begun}", str(run.path)]
    told = " · ".join(fact for fact in facts if fact)
    life = run.life
    return (
        f'<header><h1>{escape(title)}<span class="state {life}">{_LIVES[life]}</span></h1>'
        f'<p class="facts">{escape(told)}</p></header>'
    )


def _tiles(run: RunState) -> str:
    main = run.ranks[0].steps
    course = main.course
    seconds = run.seconds
    pace = pace_of(course)
    per_second = (pace.samples_per_second or pace.steps_per_second) if pace else 0.0
    unit = "samples/s" if pace and pace.samples else "steps/s"
    read = losses(course)
    peaks = [(_peak(each.steps.course), each.rank) for each in run.ranks if each.steps.course]
    waited = pace.communication_share if pace else 0.0
    tiles = [
        ("Steps", f"{main.steps:,}", f"in {show_duration(seconds)}"),
        (
            "Throughput",
            show_number(per_second) if pace else "-",
            f"{unit}, from the second step on" if pace else "no steps",
        ),
        ("Loss", show_number(read[-1][1]) if read else "-", _loss_words(run)),
        ("Waiting for others", show_share(waited), f"of rank {main.rank}'s time, from the second step on"),
    ]
    if peaks:
        most, rank = max(peaks)
        tiles.append(("Peak memory", show_bytes(most), f"of a process, rank {rank}"))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _loss_words(run: RunState) -> str:
    course = run.ranks[0].steps.course
    read = [each for each in course if each.losses]
    if not read:
        return "the script read none"
    broken = next((each.step for each in read if each.loss != each.loss), None)
    if broken is not None:
        return f"not a number at step {broken:,}"
    return f"at step {read[-1].step:,}"


def _loss(run: RunState) -> str:
    lines = [Line("loss", "c0", losses(run.ranks[0].steps.course))]
    caption = "What the script read as its loss (item(), float(), a format), by optimizer step."
    return line_chart(
        lines, caption=caption, across=lambda x: f"{x:,.0f}", up=show_number, x_name="step", from_zero=False
    )


def _throughput(run: RunState) -> str:
    main = run.ranks[0].steps
    points, unit = throughput(main.course, main.monotonic)
    caption = f"{unit.capitalize()} by time, of all ranks together."
    if unit == "steps/s":
        caption = "Steps/s by time: of this run no samples are known."
    return line_chart(
        [Line(unit, "c2", points)],
        caption=caption,
        across=_clock,
        up=show_number,
        x_name="time",
        marks=_marks(run),
    )


def _memory(run: RunState) -> str:
    ranks = _chosen(run.ranks, lambda each: _peak(each.steps.course), _LINES)
    lines: list[Line] = []
    on_device = any(each.device for rank in ranks for each in rank.steps.course[-1:])
    for place, rank in enumerate(ranks):
        steps = rank.steps
        points = memory(steps.course, steps.monotonic, device=on_device)
        lines.append(Line(f"rank {rank.rank}", f"c{place % 8}", points))
    what = "Memory that torch holds on each rank's device" if on_device else "Resident memory of each process"
    caption = f"{what}, by time{_of_all(run, ranks)}."
    return line_chart(
        lines,
        caption=caption,
        across=_clock,
        up=lambda y: show_bytes(round(y)),
        x_name="time",
        binary=True,
        marks=_marks(run),
    )


def _phases(run: RunState) -> str:
    ranks = _chosen(run.ranks, lambda each: -_share_waited(each), _ROWS)
    rows: list[tuple[str, dict[str, float]]] = []
    for rank in ranks:
        usual = steady(rank.steps.course)
        count = max(1, sum(each.steps for each in usual))
        rows.append((f"rank {rank.rank}", {part: sum_ / count for part, sum_ in by_phase(usual).items()}))
    caption = f"The mean step of each rank, without the first one{_of_all(run, ranks)}."
    return stacked_bars(rows, _COLOURS, caption=caption, words=show_duration)


def _phases_over_time(run: RunState) -> str:
    columns = over_time([each.steps for each in run.ranks], run.begun)
    caption = (
        "Shares of the time, the mean of all ranks. What lies between steps counts too: evaluation, saving."
    )
    return stacked_columns(
        columns, _COLOURS, caption=caption, across=_clock, x_name="time", marks=_marks(run)
    )


def _stragglers(run: RunState) -> str:
    found = stragglers([each.steps for each in run.ranks])
    if not any(each.collectives for each in found):
        return '<p class="none">There were not any collectives.</p>'
    shown = sorted(found, key=lambda each: -each.late)[:_ROWS]
    steps = {each.rank: max(1, each.steps.steps) for each in run.ranks}
    most = max(each.late for each in shown) or 1.0
    rows = "".join(
        f"<tr><td>rank {each.rank}</td>"
        f"<td>{meter(each.last, 'c1')}{show_share(each.last)}</td>"
        f"<td>{meter(each.late / most, 'c3')}{show_duration(each.late / steps[each.rank])}</td>"
        f"<td>{show_duration(each.waited / steps[each.rank])}</td></tr>"
        for each in shown
    )
    return (
        f'<p class="note">{escape(_verdict(found))} Times are those of a step.</p>'
        '<div class="scroll"><table><thead><tr><th>rank</th>'
        "<th>came last</th><th>others waited</th><th>waited itself</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _verdict(found: Sequence[Straggling]) -> str:
    """Return a sentence on the slowest rank."""
    if len(found) < 2:
        return "One rank: nobody waits."
    slowest = max(found, key=lambda each: each.late)
    rest = sum(each.late for each in found) - slowest.late
    if slowest.late > 3 * rest / (len(found) - 1) and slowest.last > 1.5 / len(found):
        return (
            f"Rank {slowest.rank} stands out: it came last to {show_share(slowest.last)} of its collectives, "
            f"and the others waited {show_duration(slowest.late)} for it."
        )
    return "No rank stands out: the ranks of a host come last in turn."


def _routes(run: RunState) -> str:
    rows: list[tuple[str, dict[str, float]]] = []
    ranks = _chosen(run.ranks, lambda each: sum(by_route(each.steps.course).values()), _ROWS)
    for rank in ranks:
        found = by_route(rank.steps.course)
        rows.append((f"rank {rank.rank}", {route: float(found.get(route, 0)) for route in _ROUTE_COLOURS}))
    if not any(sum(parts.values()) for _, parts in rows):
        return '<p class="none">Nothing was sent.</p>'
    algorithm = next((each.summary.algorithm for each in run.ranks if each.summary is not None), "")
    caption = f"Bytes that each rank handed over, by route{_of_all(run, ranks)}."
    if algorithm:
        caption += f" Gradients: {algorithm}."
    count = sum(each.collectives for each in run.ranks[0].steps.course)
    steps = max(1, run.ranks[0].steps.steps)
    caption += f" {show_number(count / steps)} collectives a step."
    return stacked_bars(rows, _ROUTE_COLOURS, caption=caption, words=lambda value: show_bytes(round(value)))


_ROUTE_COLOURS = {"shared memory": "c0", "tcp": "c1", "nccl": "c2", "server": "c4"}


def _events(run: RunState) -> str:
    notes = list(dict.fromkeys(note for each in run.ranks if each.summary for note in each.summary.notes))
    items = "".join(
        f"<li><time>{escape(_clock(round(max(0.0, run.seconds_of(event)), 1)))}</time>"
        f'<span class="kind {_word(event.kind)}">{escape(event.kind)}</span>'
        f"<p>{_whom(event.rank, event.kind)}{escape(event.text)}</p></li>"
        for event in run.events
    )
    items += "".join(
        f'<li><time></time><span class="kind">note</span><p>{escape(note)}</p></li>' for note in notes
    )
    return f'<ol class="events">{items}</ol>' if items else '<p class="none">None.</p>'


def _word(kind: str) -> str:
    """Return a kind of event as a class of the page's style."""
    return kind if kind.isalpha() else "other"


def _whom(rank: int | None, kind: str) -> str:
    return "" if rank is None or kind == "start" else f"rank {rank}: "


def _ranks(run: RunState) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in ("rank", "host", "state", "steps", "samples", *PARTS, "memory")
    )
    rows: list[str] = []
    for rank in run.ranks:
        steps, spent = rank.steps, by_phase(rank.steps.course)
        cells = [
            f"rank {steps.rank}", steps.host, _LIVES[rank.life], f"{steps.steps:,}", f"{steps.samples:,}",
            *(show_duration(spent[part]) for part in PARTS), show_bytes(_peak(steps.course)),
        ]  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return (
        '<p class="note">Seconds of the whole run in each part, and the peak of resident memory.</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _footer(run: RunState) -> str:
    told = max((each.steps for rank in run.ranks for each in rank.steps.course), default=1)
    thinned = f" A point of this run stands for up to {told:,} steps." if told > 1 else ""
    return (
        f"<footer>ronde {escape(__version__)}. Times are of the host's side: a CUDA device works on while "
        f"the host goes ahead. Waiting is taken out of the phase in which it happens.{thinned}</footer>"
    )


def _peak(course: Sequence[StepRecord]) -> int:
    return max((each.resident for each in course), default=0)


def _share_waited(rank: RankRun) -> float:
    pace = pace_of(rank.steps.course)
    return pace.communication_share if pace else 0.0


def _chosen(ranks: Sequence[RankRun], weight: Callable[[RankRun], float], most: int) -> list[RankRun]:
    """Return all ranks, or of many the ones with most weight, in order."""
    kept = sorted(ranks, key=lambda each: (-weight(each), each.rank))[:most]
    return sorted(kept, key=lambda each: each.rank)


def _of_all(run: RunState, shown: Sequence[RankRun]) -> str:
    if len(shown) == len(run.ranks):
        return ""
    return f"; {len(shown)} of {len(run.ranks)} ranks, those that stand out"


def _marks(run: RunState) -> list[Mark]:
    return [
        Mark(run.seconds_of(event), f"{event.kind}: {event.text}", event.kind)
        for event in run.events
        if event.kind in _ENDS
    ]


def _clock(seconds: float) -> str:
    """Format seconds as a clock time, or as seconds below a minute.

    >>> _clock(0), _clock(2.5), _clock(75), _clock(3700)
    ('0 s', '2.5 s', '1:15', '1:01:40')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def write(run: RunState, out: Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = out.with_name(f".{out.name}.new")
    temporary.write_text(page(run), encoding="utf-8")
    temporary.replace(out)
