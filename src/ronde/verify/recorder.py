"""Installs the recorder in a rank, as a worker's extension, or the plain run.

The recorder must not change what it records: it draws no random numbers, adds nothing to the graph, and
its files are opened past ronde's own mediation of files.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Protocol

import torch

from ronde.verify.batches import BatchRecorder
from ronde.verify.call_sites import Sites
from ronde.verify.double import compute_in_double
from ronde.verify.halves import InHalves
from ronde.verify.perturb_parameters import RoundedUp
from ronde.verify.perturb_ties import Turning
from ronde.verify.reads import ReadRecorder
from ronde.verify.record import RecordConfig, Writer
from ronde.verify.replay_clock import Chances
from ronde.verify.starts import StartRecorder
from ronde.verify.steps import StepRecorder
from ronde.verify.writes import Unmediated, WriteRecorder

__all__ = ["install", "record"]


class _Files(Protocol):
    def unmediated(self) -> contextlib.AbstractContextManager[object]: ...


class _LoaderPosition(Protocol):
    @property
    def rank(self) -> int: ...


class _Config(Protocol):
    @property
    def place(self) -> _LoaderPosition: ...


class _Session(Protocol):
    @property
    def config(self) -> _Config: ...

    @property
    def files(self) -> _Files: ...

    @property
    def agreement(self) -> Any: ...


def install(session: _Session | None) -> None:
    """Record this rank: the extension `ronde.verify.recorder:install`. A run of one rank has no session."""
    config = RecordConfig.take_from(os.environ)
    if session is None:
        writer = Writer(config.directory, 0)
        Chances(writer, config.replay).install()
        record(config, writer)
        return
    with session.files.unmediated():
        writer = Writer(config.directory, session.config.place.rank)
        session.agreement.proposed = Chances(writer, config.replay).answer
    record(config, writer, session.files.unmediated)


def record(
    config: RecordConfig,
    writer: Writer,
    unmediated: Unmediated = contextlib.nullcontext,
) -> None:
    """Start recording in this process, for as long as it lives."""
    if config.double:
        compute_in_double()
    _differ(config, writer)
    WriteRecorder(writer, config.scratch, config.tree, unmediated).install()
    BatchRecorder(writer).install()
    sites = Sites(config.scratch, config.tree)
    ReadRecorder(writer, sites).install()
    StartRecorder(writer, sites, delay=config.twin == "again").install()
    StepRecorder(writer, config.steps).install()


def _differ(config: RecordConfig, writer: Writer) -> None:
    """Make a twin differ from the plain run, by rounding alone."""
    if config.twin == "halves":
        InHalves(writer, narrow=config.narrow).install()
    elif config.twin == "up":
        RoundedUp().install()
    elif config.twin == "threads":
        torch.set_num_threads(torch.get_num_threads() + 1)
    elif config.twin == "turned":
        Turning(writer).install()
