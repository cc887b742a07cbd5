"""How a run on several hosts has ended: what their agents tell, and what the user is told of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from ronde.launch.agent_link import AgentLink
from ronde.launch.announce import say
from ronde.launch.failure_report import (
    ErrorFile,
    RankDeath,
    RankFailure,
    failure_beside,
    first_failure,
    report,
    shell_code,
)
from ronde.launch.frames import Kind
from ronde.launch.job import Job, Outcome
from ronde.launch.supervisor import ENDING
from ronde.trace.summary import read_summary, summary_lines

__all__ = ["HostsEnd"]

_PLACE = re.compile(r"  rank \d+ ")
_NAME = re.compile(r"rank-\d+\.(log|summary\.json)")


class HostsEnd:
    """What is known about the end of a run.

    Attributes:
        failed_at: when the first failure was noticed, on the monotonic clock.
        stood_still: some host's ranks have waited for others for too long.
    """

    def __init__(self, job: Job, links: Sequence[AgentLink], in_mid_line: Callable[[], bool]) -> None:
        self.failed_at: float | None = None
        self.stood_still = False
        self._job = job
        self._links = links
        self._in_mid_line = in_mid_line
        self._deaths: list[RankDeath] = []
        self._errors: dict[int, ErrorFile] = {}
        self._words: list[tuple[float, AgentLink | None, str]] = []
        self._last: dict[int, dict[str, Any]] = {}
        self._interrupted_by: int | None = None
        self._killed_by_user = False

    def interrupt(self, number: int, *, again: bool) -> None:
        """The user has ended the run, unless it had failed already."""
        if self.failed_at is None:
            self._interrupted_by = number
        self._killed_by_user |= again

    def take_news(self, kind: Kind, fields: dict[str, Any], skew: float) -> None:
        """A rank has ended, or has written why it fails; by a clock that is `skew` seconds before ours."""
        fields["time"] -= skew
        if kind is Kind.DEATH:
            death = RankDeath(**fields)
            self._deaths.append(death)
            failed = death.code != 0
        else:
            error = ErrorFile(**fields)
            self._errors[error.rank] = error
            path = self._job.run_directory.error(error.rank)
            with contextlib.suppress(OSError):
                path.write_text(json.dumps(dataclasses.asdict(error)), encoding="utf-8")
            failed = True
        if failed:
            self._fail()

    def take_file(self, content: bytes) -> None:
        """A file of a host's run directory, for ours."""
        name, _, data = content.partition(b"\n")
        if _NAME.fullmatch(name.decode("utf-8", "replace")):
            with contextlib.suppress(OSError):
                (self._job.run_directory.path / name.decode()).write_bytes(data)

    def take_last(self, link: AgentLink, fields: dict[str, Any]) -> None:
        """A host's part has ended."""
        self._last[link.index] = fields
        self.stood_still |= bool(fields.get("standstill"))
        for words in (fields.get("refused"), fields.get("standstill")):
            if words:
                self._words.append((time.time(), link, words))
                self._fail()

    def take_loss(self, link: AgentLink, said: Sequence[str], code: int) -> None:
        """An agent is gone without a last word."""
        why = next((line.strip() for line in reversed(said) if line.strip()), f"exit code {shell_code(code)}")
        ranks = ", ".join(str(link.first_rank + place) for place in range(link.ranks))
        self._words.append(
            (
                time.time(),
                link,
                f"the connection to {link.name} is lost ({why}), and with it "
                f"rank{'s' if link.ranks > 1 else ''} {ranks}; see whether that host is up; what ran "
                "there ends by itself",
            )
        )
        self._fail()

    def take_end_of_store(self, code: int) -> None:
        """The process where ranks meet is gone."""
        self._words.append(
            (
                time.time(),
                None,
                f"the store, where ranks meet, has ended (exit code {shell_code(code)}); start the run again",
            )
        )
        self._fail()

    def outcome(self) -> Outcome:
        """Tell the user what there is to tell, and how it ended."""
        job = self._job
        failure, words = self._failure()
        code = self._exit_code(failure)
        lines: list[str] = []
        if failure is None and code == 0 and not job.quiet:
            lines = self._summary()
        mid_line = self._in_mid_line()
        for text in [*lines, *([words] if words else [])]:
            if job.shown:
                say(text, new_line=mid_line)
                mid_line = False
        return Outcome(exit_code=code, failure=failure, report=words)

    def _failure(self) -> tuple[RankFailure | None, str]:
        """What failed first, and what to tell about it."""
        if self._killed_by_user:
            return None, ""
        if self._interrupted_by is not None:
            first = failure_beside(ENDING, self._deaths, self._errors)
        else:
            first = first_failure(self._deaths, self._errors)
        if self._words and self._interrupted_by is None:
            at, link, words = self._words[0]
            if first is None or first.kind == "peer" or at < first.time:
                rank = link.first_rank if link is not None else 0
                failure = RankFailure(rank=rank, time=at, kind="standstill", exit_code=1)
                words = _with_places(words, [last.get("places", "") for last in self._last.values()])
                return failure, f"{words}\nlogs of all ranks: {self._job.run_directory.path}"
        if first is None:
            return None, ""
        words = report(
            first,
            self._deaths,
            self._errors,
            self._job.run_directory,
            self._job.ranks,
            main_shown=self._job.shown,
        )
        name = f"rank {first.rank} "
        if words.startswith(name):
            words = f"rank {first.rank} on {self._host_of(first.rank)} {words.removeprefix(name)}"
        return first, words

    def _exit_code(self, failure: RankFailure | None) -> int:
        if self._interrupted_by is None:
            return failure.exit_code if failure is not None else 0
        own = self._last.get(0, {}).get("exit_code", 0)
        return 128 + self._interrupted_by if self._killed_by_user or 0 not in self._last else own

    def _host_of(self, rank: int) -> str:
        return next(
            link.name for link in self._links if link.first_rank <= rank < link.first_rank + link.ranks
        )

    def _summary(self) -> list[str]:
        found = (read_summary(self._job.run_directory.summary(rank)) for rank in range(self._job.ranks))
        lines = summary_lines([summary for summary in found if summary is not None])
        for link in self._links:
            if left := self._last.get(link.index, {}).get("left"):
                lines.append(f"ended what the script had left running on {link.name}: {', '.join(left)}")
        return lines

    def _fail(self) -> None:
        if self.failed_at is None:
            self.failed_at = time.monotonic()


def _with_places(words: str, elsewhere: Sequence[str]) -> str:
    """One host's report of a standstill with the places of all hosts' ranks in it, by number."""
    lines = words.splitlines()
    places = [line for line in lines if _PLACE.match(line)]
    if not places:
        return words
    first = lines.index(places[0])
    others = [line for line in lines if line not in places]
    places += [line for text in elsewhere for line in text.splitlines() if line not in places]
    places.sort(key=lambda line: int(line.split()[1]))
    return "\n".join([*others[:first], *places, *others[first:]])
