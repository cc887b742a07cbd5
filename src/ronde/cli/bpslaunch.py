"""`ronde bpslaunch`: start a script written for BytePS."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ronde.cli.explaining import explain
from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.cluster.linux import check_linux
from ronde.cluster.torch_install import check_torch
from ronde.compat.worker import WORKER
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.job import LaunchJob
from ronde.launch.launcher import launch
from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory

__all__ = ["bpslaunch"]


def bpslaunch(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="Command of the script: python train.py.")
    ] = None,
) -> None:
    """Start a script written for BytePS, a rank for each visible device.

    Devices are the entries of NVIDIA_VISIBLE_DEVICES. The script imports ronde's `byteps.torch`, and is not
    distributed by ronde otherwise. Servers and a scheduler are not needed: with such a DMLC_ROLE the command
    ends at once.
    """
    check_linux()
    check_torch()
    role = os.environ.get("DMLC_ROLE", "worker")
    if role in ("server", "scheduler"):
        say(f"a {role} is not needed: ranks exchange gradients among themselves [R726]")
        return
    if not command:
        raise UsageError("no command is given; try ronde bpslaunch python train.py [R700]")
    if os.environ.get("DMLC_NUM_WORKER", "1") not in ("", "1"):
        raise UsageError(
            f"DMLC_NUM_WORKER={os.environ['DMLC_NUM_WORKER']}: several hosts are started at once, by ronde "
            "horovodrun -H HOST:N,... python SCRIPT, which has BytePS's names too [R726]"
        )
    if os.environ.get("BYTEPS_ENABLE_ASYNC", "0") not in ("", "0"):
        raise UsageError(
            "BYTEPS_ENABLE_ASYNC=1 is not in this version; take BytePS out of the script, and use ronde run "
            "--plan ps-async [R726]"
        )
    devices = cuda_devices(os.environ) if torch_has_cuda() else ()
    listed = [each for each in os.environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    ranks = len(listed) if listed and listed != ["all"] else max(1, len(devices))
    job = LaunchJob(
        run=RunSpec(
            script=command[0],
            arguments=tuple(command[1:]),
            native=True,
            labelled=True,
            quiet=True,
            worker=WORKER,
        ),
        ranks=ranks,
        run_directory=RunDirectory.create(None, os.environ),
        environment=os.environ,
        devices=devices,
    )
    raise typer.Exit(launch(job, explain=explain).exit_code)
