"""The agent of `ronde doctor -H` on each host: a launcher's, with two more answers."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ronde.cluster.link_speed import Reflector, measure
from ronde.cluster.reach import listen_everywhere
from ronde.doctor.preflight import examine
from ronde.launch import agent
from ronde.launch.frames import FrameKind

__all__ = ["main"]


def main() -> None:
    """Serve one `ronde doctor`, and end when it does."""
    agent.main(
        {FrameKind.EXAMINE: (FrameKind.EXAMINED, _examine), FrameKind.MEASURE: (FrameKind.MEASURED, _measure)}
    )


def _examine(asked: dict[str, Any]) -> dict[str, Any]:
    """Examine this host, and let others measure the link to it from now on."""
    listener = listen_everywhere()
    Reflector(listener, asked["word"])
    # As for a run on one host: others learn its address from the agent, not from its name.
    findings = examine(os.environ, ranks=asked["ranks"], threads=asked["threads"])
    return {
        "findings": [dataclasses.asdict(each) for each in findings],
        "port": listener.getsockname()[1],
    }


def _measure(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return measure(asked["address"], asked["port"], asked["word"])._asdict()
    except OSError as error:
        return {"failed": error.strerror or str(error) or type(error).__name__}
