"""The end of a run: evidence of all nodes is interpreted and reported once.

Evidence of all nodes is merged in `RUN_DIR/evidence`: `stall.json`, `failure.json`, of a run that ended well
`end.json`, stacks as texts, and `explanation.json`.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from ronde.launch.announce import say
from ronde.launch.failure import Abort, AbortKind, RankExits, RankFailure
from ronde.launch.failure_report import report
from ronde.launch.job import LaunchJob, Outcome
from ronde.launch.node import NodeOfRun
from ronde.launch.stall_detector import told_at_last, told_early
from ronde.trace.events import write_event
from ronde.trace.evidence import Evidence, Failure, merged, write_evidence
from ronde.trace.explanation import Explanation, write_explanation
from ronde.trace.heartbeat import first_not_finite, look_at, vitals_path
from ronde.trace.lockstep_board import BoardPosition
from ronde.trace.summary import read_summary, summary_lines

__all__ = ["Explain", "RunEnd"]

# Causes with weak evidence, ordered by how much they explain.
_THIN = ("unknown", "waits-for-hosts", "peer-lost")

Explain = Callable[[Evidence], Explanation]


class RunEnd:
    """Collected information about the end of a run.

    Args:
        ends: record of the ends of all ranks; the listeners of nodes fill it.
        explain: function that interprets evidence of all nodes; None: evidence is only stored.
        in_mid_line: whether the user's stderr has an unfinished line.
    """

    def __init__(
        self,
        job: LaunchJob,
        ends: RankExits,
        nodes: Sequence[NodeOfRun],
        explain: Explain | None,
        in_mid_line: Callable[[], bool],
    ) -> None:
        self.ends = ends
        self._job = job
        self._nodes = nodes
        self._ranks = range(job.first_rank, job.first_rank + job.ranks)
        self._explain = explain
        self._in_mid_line = in_mid_line
        self._evidence: dict[int, Evidence] = {}
        self._standings: list[BoardPosition] = []
        self._left: dict[int, Sequence[str]] = {}
        self._stall: Explanation | None = None
        self._silences: Mapping[int, float] = {}

    def hear_nothing_of(self, silences: Mapping[int, float]) -> None:
        """Record for how many seconds nodes have sent nothing, by their numbers."""
        self._silences = silences

    def abort(self, kind: AbortKind, said: str, node: int | None = None) -> None:
        """Record the reason for ending the run, unless the run has failed already.

        Args:
            node: number of the node concerned.
        """
        if self.ends.abort is None:
            rank = 0 if node is None else self._nodes[node].first_rank
            self.ends.abort = Abort(kind=kind, time=time.time(), said=said, rank=rank)

    def notice(self, words: str) -> None:
        """Tell the user of something during the run."""
        write_event(self._job.run_directory.path, "notice", words)
        if self._job.shown:
            say(words, new_line=self._in_mid_line())

    def stalled(self, parts: Mapping[int, Evidence], *, is_over: bool) -> None:
        """Explain to the user why ranks wait, or end the run because they wait.

        Args:
            parts: evidence of each node, by its number.
        """
        evidence = self._joined(parts, "stall")
        write_evidence(evidence)
        self._stall = self._explained(evidence)
        if is_over:
            self.abort("standstill", told_at_last(evidence, self._job.run.timeout))
        else:
            self.notice(told_early(evidence, self._stall, self._job.run.timeout))

    def asked(self, parts: Mapping[int, Evidence]) -> None:
        """Write the evidence of each node, by its number, for `ronde doctor`."""
        write_evidence(self._joined(parts, "asked"))

    def froze(self, node: int, evidence: Evidence) -> None:
        """Store a node's evidence of the first failure, from before ranks were ended."""
        self._evidence[node] = evidence
        write_evidence(self._joined(self._evidence, "failure"))

    def ended(
        self, node: int, evidence: Evidence | None, standings: Sequence[BoardPosition], left: Sequence[str]
    ) -> None:
        """Record that all ranks of a node are gone.

        Args:
            evidence: present evidence of them; None if not needed.
            standings: last known places of the ranks.
            left: processes of the script that outlived the ranks, and were ended.
        """
        if evidence is not None:
            self._evidence[node] = evidence
        self._standings = sorted([*self._standings, *standings], key=lambda standing: standing.rank)
        self._left[node] = left

    def outcome(self) -> Outcome:
        """Report the end of the run to the user, and return it."""
        job, ends = self._job, self.ends
        failure = self._failure()
        code, words = ends.exit_code(), ""
        lines: Sequence[str] = ()
        if failure is not None:
            explanation = self._concluded(failure)
            words = report(
                failure,
                ends,
                job.run_directory,
                job.ranks,
                main_shown=job.shown,
                standings=self._standings,
                explained=() if explanation is None or explanation.told else explanation.lines(),
            )
        elif code == 0 and not job.run.quiet:
            lines = self._summary()
        elif ends.ended_by_signal is not None and not job.run.quiet:
            lines = [self._ended_by(ends.ended_by_signal)]
        if failure is None and self._evidence:
            write_evidence(self._joined(self._evidence, "end"))
        new_line = self._in_mid_line()
        for text in [*lines, *([words] if words else [])]:
            if job.shown:
                say(text, new_line=new_line, error=text is words)
                new_line = False
        told = failure.summary if failure is not None else f"exit code {code}"
        write_event(job.run_directory.path, "end", told, exit_code=code)
        return Outcome(exit_code=code, failure=failure, report=words)

    def _failure(self) -> RankFailure | None:
        failure = self.ends.failure()
        if failure is None:
            return None
        host = next((node.name for node in self._nodes if failure.rank in node), "")
        return dataclasses.replace(failure, host=host)

    def _concluded(self, failure: RankFailure) -> Explanation | None:
        """Explain all evidence; None without evidence or explainer."""
        if not self._evidence:
            return None
        said = "" if self.ends.abort is None else self.ends.abort.said
        evidence = dataclasses.replace(
            self._joined(self._evidence, "failure"),
            failure=Failure(rank=failure.rank, kind=failure.kind, exit_code=failure.exit_code),
            said=said,
        )
        write_evidence(evidence)
        found = self._explained(evidence)
        stall = self._stall
        if stall is None or (failure.kind != "standstill" and _says(found) >= _says(stall)):
            return found
        # The evidence of ranks that still waited says more than the way in which they were ended.
        write_explanation(stall, self._job.run_directory.path)
        return stall

    def _joined(self, parts: Mapping[int, Evidence], reason: str) -> Evidence:
        """Join the evidence of several nodes, with their names and the silent nodes."""
        named = [_named(part, self._nodes[node]) for node, part in sorted(parts.items())]
        silent = tuple(
            self._nodes[node].silent(seconds)
            for node, seconds in sorted(self._silences.items())
            if node not in parts
        )
        return dataclasses.replace(merged(named, self._job.run_directory.path), reason=reason, silent=silent)

    def _explained(self, evidence: Evidence) -> Explanation | None:
        if self._explain is None:
            return None
        explanation = self._explain(evidence)
        write_explanation(explanation, self._job.run_directory.path)
        return explanation

    def _summary(self) -> Sequence[str]:
        """Read the ranks' summaries; empty for a script without ronde."""
        directory = self._job.run_directory
        found = (read_summary(directory.summary(rank)) for rank in self._ranks)
        lines = summary_lines([summary for summary in found if summary is not None])
        return [*lines, *self._not_finite(), *_left_running(self._nodes, self._left, self.ends)]

    def _not_finite(self) -> Sequence[str]:
        """Warn of gradients that were NaN or infinite at the end.

        The warning names the first such step.
        """
        directory = self._job.run_directory.path
        seen = {rank: look_at(vitals_path(directory, rank)) for rank in self._ranks}
        first = first_not_finite(
            {rank: 0 if each is None else each.not_finite for rank, each in seen.items()}
        )
        if first is None:
            return ()
        rank, step, everywhere = first
        where = "on all ranks" if everywhere else f"first on rank {rank}"
        return (
            f"gradients are not finite (NaN or infinite) since step {step}, {where}; "
            f"ronde doctor {directory} tells more [R194]",
        )

    def _ended_by(self, number: int) -> str:
        """Report that a batch system's signal ended the run, unless a rank reported it."""
        name = signal.Signals(number).name
        if self._job.run.checkpoint:
            return f"the run was ended by {name} [R193]"
        return f"the run was ended by {name}; with --checkpoint DIR it would save first [R193]"


def _named(evidence: Evidence, node: NodeOfRun) -> Evidence:
    hosts = (dataclasses.replace(host, name=node.name, address=node.address) for host in evidence.hosts)
    return dataclasses.replace(evidence, hosts=tuple(hosts))


def _says(found: Explanation | None) -> int:
    """Return the strength of an explanation, to sort by."""
    return _THIN.index(found.cause) if found is not None and found.cause in _THIN else len(_THIN)


def _left_running(
    nodes: Sequence[NodeOfRun], left: Mapping[int, Sequence[str]], ends: RankExits
) -> Sequence[str]:
    """Describe the processes that the script left running, for each node."""
    if ends.interrupted_by is not None:
        return ()
    return [
        "ended processes that the script left "
        f"running{f' on {nodes[node].name}' if nodes[node].name else ''}: {', '.join(names)} [R126]"
        for node, names in sorted(left.items())
        if names
    ]
