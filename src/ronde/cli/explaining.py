"""Explanation of failed and stalled runs, for launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ronde.trace.evidence import Evidence
    from ronde.trace.explanation import Explanation

__all__ = ["explain"]


def explain(evidence: Evidence) -> Explanation:
    """Judge evidence; the rules are imported when something has gone wrong."""
    from ronde.doctor.explain import explain

    return explain(evidence)
