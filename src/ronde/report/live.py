"""`ronde top`: the state of a run in the terminal, updated while it goes on."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ronde.report.figures import RankFigures, RunFigures, figures_of
from ronde.report.run import Life, RankRun, RunState, read_run
from ronde.report.step_arrays import PARTS
from ronde.trace.memory import show_bytes
from ronde.trace.number_format import show_duration, show_number, show_share
from ronde.trace.phases import PHASES

__all__ = ["frame", "watch"]

_COLOURS = {
    "data": "yellow",
    "forward": "blue",
    "backward": "magenta",
    "optimizer": "green",
    "communication": "red",
    "other": "bright_black",
}
_LIVES: dict[Life, tuple[str, str]] = {
    "runs": ("running", "green"),
    "ended": ("ended", "blue"),
    "failed": ("failed", "bold red"),
    "gone": ("gone without a word", "bold red"),
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR = 16
_STALE_S = 10.0
_EVENTS = 4


def watch(path: Path, *, every: float, once: bool, console: Console) -> None:
    """Show the run until it is over or the user stops it (Ctrl-C).

    Args:
        every: seconds between two updates.
        once: whether to show the run once, and leave it on the screen.

    Raises:
        UsageError: the run has nothing to show.
    """
    run = read_run(path)
    first = frame(run, console.width)
    if once or not console.is_terminal:
        console.print(first)
        return
    with Live(first, console=console, auto_refresh=False, screen=False) as live:
        try:
            while run.life == "runs":
                time.sleep(every)
                run = read_run(path)
                live.update(frame(run, console.width), refresh=True)
        except KeyboardInterrupt:
            return


def frame(run: RunState, width: int) -> RenderableType:
    """Draw one picture of the run."""
    figures = figures_of(run)
    parts: list[RenderableType] = [_head(run, figures), _table(run, figures, width), _legend()]
    loss = _loss_line(figures, width)
    if loss is not None:
        parts.append(loss)
    parts += [_event_line(run, place) for place in range(-_EVENTS, 0) if len(run.events) >= -place]
    return Group(*parts)


def _head(run: RunState, figures: RunFigures) -> Text:
    first = run.ranks[0].steps
    word, style = _LIVES[run.life]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(str(run.start.get("script", "")) or run.path.name, style="bold")
    text.append(f"  {word}", style=style)
    text.append(f"  {show_duration(run.seconds)}")
    plan = run.start.get("plan")
    if plan:
        text.append(f"  plan {plan}")
    text.append(f"  {len(run.ranks)} of {first.world_size} ranks")
    main = figures.ranks[0]
    if main.steps_per_second:
        text.append(f"  {show_number(main.steps_per_second)} steps/s")
        if main.samples_per_second:
            text.append(f"  {show_number(main.samples_per_second)} samples/s")
    return text


def _table(run: RunState, figures: RunFigures, width: int) -> Table:
    hosts = len({each.steps.host for each in run.ranks}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    table.add_column("rank", justify="right", no_wrap=True, min_width=4)
    if hosts:
        table.add_column("host", overflow="ellipsis", max_width=16)
    table.add_column("step", justify="right", no_wrap=True, min_width=5)
    table.add_column("phase", no_wrap=True, overflow="ellipsis", max_width=max(12, width // 4))
    if width >= 72:
        table.add_column("last steps", no_wrap=True)
    for name in ("data", "waits", "memory", "last", "late/step"):
        table.add_column(name, justify="right", no_wrap=True)
    for each, rank in zip(run.ranks, figures.ranks, strict=True):
        steps = each.steps
        spent: dict[str, float] = dict(zip(PARTS, rank.recent.tolist()))
        whole = max(sum(spent.values()), 1e-9)
        cells: list[RenderableType] = [str(steps.rank)]
        if hosts:
            cells.append(steps.host)
        cells += [str(steps.steps), _phase(run, each)]
        if width >= 72:
            cells.append(_bar(spent, whole))
        cells += [
            show_share(spent["data"] / whole),
            show_share(spent["communication"] / whole),
            _memory(rank),
            show_share(rank.came_last) if rank.collectives else "-",
            show_duration(rank.late / max(1, steps.steps)) if rank.collectives else "-",
        ]
        table.add_row(*cells)
    return table


def _phase(run: RunState, rank: RankRun) -> Text:
    if rank.life != "runs":
        word, style = _LIVES[rank.life]
        return Text(word, style=style)
    phase = PHASES[rank.steps.phase] if 0 <= rank.steps.phase < len(PHASES) else "other"
    text = Text(phase, style=_COLOURS[phase])
    if rank.waits:
        text.append(f" waits: {rank.waits}", style=_COLOURS["communication"])
    since = (run.now - rank.steps.offset - max(rank.steps.since, rank.steps.monotonic)) / 1e9
    if since > _STALE_S:
        text.append(f" for {show_duration(since)}", style="bold yellow")
    return text


def _bar(spent: dict[str, float], whole: float) -> Text:
    """Draw the shares of the last steps, as blocks of colour."""
    text, reached, drawn = Text(), 0.0, 0
    for part in PARTS:
        reached += spent[part] / whole
        cells = round(reached * _BAR) - drawn
        drawn += cells
        text.append("█" * cells, style=_COLOURS[part])
    return text


def _legend() -> Text:
    text = Text("last steps: ", style="bright_black")
    for part in PARTS:
        text.append("█ ", style=_COLOURS[part])
        text.append(f"{part}  ", style="bright_black")
    return text


def _memory(rank: RankFigures) -> str:
    if not rank.resident:
        return "-"
    held = show_bytes(rank.resident)
    return f"{held} + {show_bytes(rank.device)} on its device" if rank.device else held


def _loss_line(figures: RunFigures, width: int) -> Text | None:
    loss = figures.loss
    if not len(loss.mean):
        return None
    shown = loss.mean[-max(8, min(60, width - 30)) :].tolist()
    low, high = min(shown), max(shown)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    text = Text("loss ", style="bold")
    text.append("".join(_BLOCKS[round((value - low) * scale)] for value in shown), style="blue")
    text.append(f" {show_number(shown[-1])} at step {loss.step[-1]:.0f}")
    return text


def _event_line(run: RunState, place: int) -> Text:
    event = run.events[place]
    when = max(0.0, run.seconds_of(event))
    text = Text(f"{show_duration(when) if when >= 1 else '0 s':>9}  ", style="bright_black", no_wrap=True)
    text.append(event.kind, style="bold red" if event.kind == "death" else "bold")
    if event.rank is not None and event.kind != "start":
        text.append(f" of rank {event.rank}")
    text.append(f"  {' '.join(event.text.split())}")
    return text
