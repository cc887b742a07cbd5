"""Names, kinds and meanings of the metrics of a run."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["FAMILIES", "Family"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One metric, with a value for each combination of its labels.

    Attributes:
        name: its name as it is scraped; that of a counter ends with `_total`.
        help: its meaning.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, help: str, *labels: str) -> Family:
    return Family(name=f"ronde_run_{name}_total", kind="counter", help=help, labels=labels)


def _gauge(name: str, help: str, *labels: str) -> Family:
    return Family(name=f"ronde_run_{name}", kind="gauge", help=help, labels=labels)


FAMILIES = (
    _gauge("info", "1; what runs.", "run", "script", "plan", "seed", "version"),
    _gauge("start_timestamp_seconds", "When the run began."),
    _gauge("ranks", "Number of ranks at present."),
    _gauge("hosts", "Number of their hosts."),
    _gauge("rank_info", "1; the host of each rank.", "rank", "host"),
    _gauge(
        "step", "Optimizer steps of the script, with those before a checkpoint; falls when a run restarts."
    ),
    _counter("steps", "Optimizer steps taken, repeated ones too.", "rank"),
    _counter("samples", "Samples trained on, of all ranks together."),
    _gauge("loss", "The latest loss that the script read."),
    _gauge("last_step_timestamp_seconds", "When the rank took its last step, or began.", "rank"),
    _counter("phase_seconds", "Seconds by phase; communication is waiting for others.", "rank", "phase"),
    _counter("collectives", "Collectives.", "rank"),
    _counter("last_arrivals", "Collectives to which the rank came last of its host.", "rank"),
    _counter("others_wait_seconds", "Seconds that others had waited for it by then.", "rank"),
    _counter("sent_bytes", "Bytes handed to collectives and servers.", "rank", "route"),
    _gauge("resident_memory_bytes", "Memory of the rank's process.", "rank"),
    _gauge("device_memory_bytes", "Memory that torch holds on its device.", "rank"),
    _gauge("gradients_finite", "0 while its gradients are NaN or infinite.", "rank"),
    _counter("restarts", "Restarts of the ranks: after a failure, or for other hosts.", "reason"),
    _counter("checkpoints", "Checkpoints saved."),
    _gauge("checkpoint_last_timestamp_seconds", "When the newest was saved."),
    _gauge("checkpoint_last_step", "The step of the newest."),
    _gauge("checkpoint_last_bytes", "The size of its tensors."),
    _counter("checkpoint_paused_seconds", "Seconds for which training was paused to save."),
    _counter("checkpoint_write_seconds", "Seconds of writing, beside the training."),
    _gauge("checkpoint_interval_seconds", "The interval asked for, if it is a time."),
    _gauge("checkpoint_interval_steps", "The interval asked for, if it is in steps."),
    _gauge(
        "last_cause_info",
        "1; the cause of the last failure or stall, as ronde doctor names it.",
        *("cause", "code", "rank", "host"),
    ),
    _gauge("last_cause_timestamp_seconds", "When it was found."),
)
"""All metrics, in the order in which they are shown."""
