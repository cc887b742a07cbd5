"""`ronde verify`: comparison of ranks with one device."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ronde.cli.script_check import check_module, check_script
from ronde.cluster.cores import available_cores
from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.cluster.linux import check_linux
from ronde.cluster.torch_install import check_torch, newer_than_tried
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.plan import read_plan
from ronde.plan.grammar import aliases_in

__all__ = ["verify"]

_PRECISIONS = ("double", "as-is")


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def verify(  # noqa: PLR0913 - one parameter per option
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Python script, or with -m a module.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS...", help="Arguments of the script, --help included.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, metavar="N", help="Number of ranks on this host.")] = 2,
    steps: Annotated[
        int, typer.Option(min=1, metavar="K", help="Number of optimizer steps to compare.")
    ] = 20,
    plan: Annotated[
        str, typer.Option("--plan", metavar="PLAN", help="Parallel plan, as for ronde run.")
    ] = "ddp",
    precision: Annotated[
        str,
        typer.Option(
            metavar="|".join(_PRECISIONS),
            help="double: compute in float64, whatever the script asks for; as-is: in the script's dtypes.",
        ),
    ] = "double",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of torch, numpy and random.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the outcome to FILE, too.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw both loss curves and their difference: a .png, .svg or .pdf."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each process; cores divided by ranks if absent.")
    ] = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")
    ] = False,
) -> None:
    """Run SCRIPT in plain python and on N ranks, and compare both.

    Batches, parameters after each step, values read, branches, files and random states are compared on every
    rank. The script runs in a copy of this directory made of links, and ends after K optimizer steps.
    Exit code 0: both are equal; 1: they differ; 2: there is nothing to compare.
    """
    check_linux()
    from ronde.verify.long_runs import told_of
    from ronde.verify.plot import check, draw
    from ronde.verify.proof import verify as prove
    from ronde.verify.report import to_json, to_text
    from ronde.verify.runs import Job, spawn

    if precision not in _PRECISIONS:
        raise UsageError(f"--precision {precision} is not one of {', '.join(_PRECISIONS)} [R624]")
    check_torch()
    if newer := newer_than_tried():
        say(newer)
    check_module(script) if module else check_script(script, syntax_error=2)
    if plot is not None:
        check(plot)
    devices = cuda_devices(os.environ) if torch_has_cuda() else ()
    if 0 < len(devices) < ranks:
        say(f"{len(devices)} CUDA devices are too few for {ranks} ranks: all runs are on the CPU [R625]")
        devices = ()
    job = Job(
        script=script,
        arguments=tuple(arguments or ()),
        module=module,
        steps=steps,
        seed=seed,
        double=precision == "double",
        plan=str(read_plan(plan, ranks=ranks, device="cuda" if devices else "cpu")),
        threads=threads or max(1, available_cores() // ranks),
        devices=devices[:ranks],
    )
    for alias in aliases_in(plan):
        say(f"plan {alias}")
    # SIGTERM raises, so that files of the runs are removed; SIGINT does so anyway.
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        proof = prove(job, ranks=ranks, starter=told_of(spawn, say))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print(to_text(proof))
    if json_file is not None:
        json_file.write_text(to_json(proof) + "\n")
    if plot is not None:
        draw(proof, plot)
    raise typer.Exit(0 if proof.holds else 1)
