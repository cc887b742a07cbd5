"""Report classes by the kind in their JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from ronde.bench import first_call, horovod, servers, tables
from ronde.bench.collectives import report as collectives
from ronde.bench.json_report import parsed
from ronde.bench.memory import report as memory
from ronde.bench.parallel import report as parallel
from ronde.bench.report import KINDS as STEPS
from ronde.bench.report import Report
from ronde.bench.serving import report as serving
from ronde.bench.sync import report as sync

__all__ = ["KINDS", "AnyReport", "read_report"]

AnyReport: TypeAlias = (
    Report
    | collectives.CollectivesReport
    | memory.MemoryReport
    | first_call.FirstCallReport
    | tables.TablesReport
    | servers.ServersReport
    | horovod.HorovodReport
    | serving.ServingReport
    | sync.SyncReport
    | parallel.ParallelReport
)

KINDS: Mapping[str, type[AnyReport]] = {
    collectives.KIND: collectives.CollectivesReport,
    memory.KIND: memory.MemoryReport,
    first_call.KIND: first_call.FirstCallReport,
    tables.KIND: tables.TablesReport,
    servers.KIND: servers.ServersReport,
    horovod.KIND: horovod.HorovodReport,
    serving.KIND: serving.ServingReport,
    sync.KIND: sync.SyncReport,
    parallel.KIND: parallel.ParallelReport,
    **dict.fromkeys(STEPS, Report),
}
"""Report classes by kind; a report without a kind is one of steps."""


def read_report(text: str) -> AnyReport:
    """Parse a report from `--json`; an unknown kind is read as steps.

    Raises:
        UsageError: it is none.
    """
    return parsed(KINDS.get(_kind(text), Report), text, KINDS)


def _kind(text: str) -> str:
    """Read the kind of a report; "" if the text has none."""
    try:
        fields = json.loads(text)
    except ValueError:
        return ""
    return str(fields.get("kind", "")) if isinstance(fields, dict) else ""
