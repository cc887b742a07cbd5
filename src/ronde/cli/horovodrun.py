"""`ronde horovodrun`: start a script written for Horovod."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ronde.cli.elastic_options import named_by_script, source_of
from ronde.cli.explaining import explain
from ronde.cli.horovodrun_elastic import bounds_of, drive_job
from ronde.cli.hosts_options import hosts_of, is_here_alone
from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.cluster.host_list import ranks_of_hosts
from ronde.cluster.linux import check_linux
from ronde.cluster.torch_install import check_torch
from ronde.compat.worker import WORKER
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.job import LaunchJob
from ronde.launch.launcher import launch
from ronde.launch.placement import resolve_placement
from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory

__all__ = ["horovodrun"]

_Value = Annotated[str | None, typer.Option(hidden=True)]


def horovodrun(  # noqa: PLR0913 - Horovod's options
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="Command of the script: python train.py.")
    ] = None,
    np: Annotated[int | None, typer.Option("-np", "--num-proc", metavar="N", help="Number of ranks.")] = None,
    hosts: Annotated[
        str | None, typer.Option("--hosts", "-H", metavar="HOST:N,...", help="Hosts and their slots.")
    ] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option("--hostfile", "-hostfile", metavar="FILE", help="Hosts and their slots in a file."),
    ] = None,
    ssh_port: Annotated[
        int | None, typer.Option("--ssh-port", "-p", help="Port of the hosts' ssh servers.")
    ] = None,
    start_timeout: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", help="Time limit for the init() of all ranks.")
    ] = None,
    network_interface: Annotated[
        str | None,
        typer.Option(
            "--network-interface",
            "--network-interfaces",
            metavar="NAME",
            help="Network interface between hosts.",
        ),
    ] = None,
    timeline_filename: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a timeline of collectives.")
    ] = None,
    fusion_threshold_mb: Annotated[
        int | None, typer.Option(min=0, metavar="MB", help="Size of fused messages of small tensors.")
    ] = None,
    output_filename: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for copies of the ranks' output.")
    ] = None,
    stall_check_warning_time_seconds: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Time after which a missing rank is reported.")
    ] = None,
    stall_check_shutdown_time_seconds: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Time after which a missing rank ends the run.")
    ] = None,
    no_stall_check: Annotated[
        bool, typer.Option("--no-stall-check", help="Do not report missing ranks.")
    ] = False,
    config_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Options in YAML, as horovodrun reads them.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the hosts of the ranks.")] = False,
    check_build: Annotated[
        bool, typer.Option("--check-build", "-cb", help="Print the available features, and exit.")
    ] = False,
    gloo: Annotated[bool, typer.Option("--gloo", hidden=True)] = False,
    cycle_time_ms: _Value = None,
    cache_capacity: _Value = None,
    num_nccl_streams: _Value = None,
    thread_affinity: _Value = None,
    autotune: Annotated[bool, typer.Option("--autotune", hidden=True)] = False,
    autotune_log_file: _Value = None,
    autotune_warmup_samples: _Value = None,
    autotune_steps_per_sample: _Value = None,
    hierarchical_allreduce: Annotated[bool, typer.Option("--hierarchical-allreduce", hidden=True)] = False,
    hierarchical_allgather: Annotated[bool, typer.Option("--hierarchical-allgather", hidden=True)] = False,
    disable_cache: Annotated[bool, typer.Option("--disable-cache", hidden=True)] = False,
    mpi: Annotated[bool, typer.Option("--mpi", hidden=True)] = False,
    mpi_args: _Value = None,
    jsrun: Annotated[bool, typer.Option("--jsrun", hidden=True)] = False,
    min_np: Annotated[
        int | None,
        typer.Option(
            "--min-np",
            "--min-num-proc",
            min=1,
            metavar="N",
            help="Fewest ranks of an elastic job.",
        ),
    ] = None,
    max_np: Annotated[
        int | None,
        typer.Option("--max-np", "--max-num-proc", min=1, metavar="N", help="Most ranks of an elastic job."),
    ] = None,
    host_discovery_script: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Program that prints the available hosts, a line host:slots each."),
    ] = None,
    slots_per_host: Annotated[
        int | None,
        typer.Option(
            "--slots-per-host",
            "--slots",
            min=1,
            metavar="N",
            help="Slots of hosts listed without a number; 1 if absent.",
        ),
    ] = None,
    elastic_timeout: Annotated[
        int | None,
        typer.Option(min=1, metavar="SECONDS", help="Time limit to wait for hosts; 600 if absent."),
    ] = None,
    reset_limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Most restarts of the job.")
    ] = None,
    blacklist_cooldown_range: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="MIN MAX", help="Seconds after which a failed host is used again."),
    ] = None,
) -> None:
    """Start a script written for Horovod on N ranks, as horovodrun does.

    The script imports ronde's `horovod.torch`, and is not distributed by ronde otherwise: it shards its data
    and scales its learning rate itself. Each line of output begins with `[rank]<stdout>:`.
    """
    check_linux()
    check_torch()
    if check_build:
        typer.echo("\n".join(_BUILD))
        return
    _refuse(
        {"--mpi": mpi, "--mpi-args": mpi_args, "--jsrun": jsrun},
        "ranks are started by ronde, without MPI; leave it out [R701]",
    )
    if not command:
        raise UsageError("no command is given; try ronde horovodrun -np 2 python train.py [R700]")
    told = _read_config(config_file)
    no_effect = {
        "--autotune": autotune, "--autotune-log-file": autotune_log_file,
        "--autotune-warmup-samples": autotune_warmup_samples,
        "--autotune-steps-per-sample": autotune_steps_per_sample,
        "--cycle-time-ms": cycle_time_ms, "--cache-capacity": cache_capacity,
        "--disable-cache": disable_cache, "--hierarchical-allreduce": hierarchical_allreduce,
        "--hierarchical-allgather": hierarchical_allgather,
        "--num-nccl-streams": num_nccl_streams, "--thread-affinity": thread_affinity,
    }  # fmt: skip
    without = [name for name, value in no_effect.items() if value]
    if without:
        say(f"no effect here: {', '.join(without)} [R707]")
    is_elastic = min_np is not None or max_np is not None or host_discovery_script is not None
    _check_elastic(
        is_elastic,
        {
            "--elastic-timeout": elastic_timeout,
            "--reset-limit": reset_limit,
            "--blacklist-cooldown-range": blacklist_cooldown_range,
        },
        slots_per_host,
        host_discovery_script,
    )
    slots = slots_per_host or 1
    found = named_by_script(host_discovery_script, hosts, hostfile, slots)
    where = resolve_placement(found or hosts, hostfile, {}, devices=0, parent=0)
    ranks = np if np is not None else told.pop("np", None)
    bounds = None
    if is_elastic:
        first = None if ranks is None else int(ranks)
        least = min_np if min_np is not None else first
        bounds = bounds_of(
            (first, least, max_np), elastic_timeout or 600, start_timeout, reset_limit,
            blacklist_cooldown_range,
        )  # fmt: skip
        if not where.hosts:
            raise UsageError(
                "--min-np and --max-np are for hosts that come and go; name them by --host-discovery-script, "
                "--hostfile, or -H host1:2,host2:2 [R702]"
            )
    if ranks is None and not where.hosts:
        raise UsageError(
            "-np N, the number of ranks, is missing; try ronde horovodrun -np 2 python train.py [R700]"
        )
    if ranks is not None and int(ranks) < 1:
        raise UsageError(f"-np {ranks} is not a number from 1; try -np 2 [R700]")
    asked = None if ranks is None or bounds is not None else int(ranks)
    shares = ranks_of_hosts(where.hosts, asked) if where.hosts else ()
    count = sum(number for _, number in shares) or int(ranks or 1)
    if bounds is None and is_here_alone(shares, where, ssh_port):
        shares = ()
    variables = {
        "HOROVOD_TIMELINE": timeline_filename and str(timeline_filename.absolute()),
        "HOROVOD_FUSION_THRESHOLD": None if fusion_threshold_mb is None else str(fusion_threshold_mb << 20),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": stall_check_warning_time_seconds,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": stall_check_shutdown_time_seconds,
        "HOROVOD_STALL_CHECK_DISABLE": "1" if no_stall_check else None,
        "HOROVOD_START_TIMEOUT": start_timeout,
        "HOROVOD_ELASTIC_TIMEOUT": elastic_timeout,
        "GLOO_SOCKET_IFNAME": network_interface,
    }
    given = {name: str(value) for name, value in variables.items() if value is not None}
    environment = {**os.environ, **told, **given}
    remote = hosts_of(where, shares, ssh_port, None, _forwarded(environment) if shares else [], None)
    job = LaunchJob(
        run=RunSpec(
            script=command[0],
            arguments=tuple(command[1:]),
            native=True,
            labelled=True,
            quiet=not verbose,
            worker=WORKER,
        ),
        ranks=count,
        run_directory=RunDirectory.create(output_filename, os.environ),
        environment=environment,
        devices=cuda_devices(os.environ) if torch_has_cuda() else (),
    )
    if bounds is not None and remote is not None:
        named = source_of(host_discovery_script, hostfile, where, slots)
        raise typer.Exit(drive_job(job, remote, bounds, named, say, explain))
    if verbose:
        started = f"{count} ranks of {' '.join(command)}; {job.run_directory.path}"
        say(started)
    raise typer.Exit(launch(job, remote, explain).exit_code)


# In the form of horovodrun's, which scripts search.
_BUILD = (
    "Horovod v0.28.1:", "",
    "Available Frameworks:", "    [ ] TensorFlow", "    [X] PyTorch", "    [ ] MXNet", "",
    "Available Controllers:", "    [ ] MPI", "    [X] Gloo", "",
    "Available Tensor Operations:", "    [ ] DDL", "    [ ] CCL", "    [ ] MPI", "    [X] Gloo",
)  # fmt: skip


def _refuse(options: Mapping[str, Any], why: str) -> None:
    for name, value in options.items():
        if value:
            raise UsageError(f"{name}: {why}")


def _check_elastic(
    is_elastic: bool, options: Mapping[str, Any], slots: int | None, script: Path | None
) -> None:
    """Refuse options of elastic runs for other runs."""
    if not is_elastic:
        _refuse(options, "it applies to hosts that come and go; give --min-np too [R702]")
    if slots is not None and script is None:
        raise UsageError(
            f"--slots-per-host {slots} is for --host-discovery-script; write HOST:{slots} in -H [R702]"
        )


def _forwarded(environment: Mapping[str, str]) -> Sequence[str]:
    """Return variables to send to other hosts: Horovod's, and Gloo's interface."""
    return [name for name in environment if name.startswith("HOROVOD_") or name == "GLOO_SOCKET_IFNAME"]


def _read_config(path: Path | None) -> dict[str, str]:
    """Return the supported settings of a horovodrun config file as variables, and `np`.

    Raises:
        UsageError: the file cannot be read.
    """
    if path is None:
        return {}
    try:
        import yaml
    except ImportError:
        raise UsageError("--config-file needs a reader of YAML: pip install pyyaml [R708]") from None
    try:
        fields = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read --config-file {path}: {error} [R708]") from None
    params, timeline, stalls = (fields.get(name) or {} for name in ("params", "timeline", "stall-check"))
    threshold = params.get("fusion-threshold-mb")
    found = {
        "np": fields.get("num-proc"),
        "HOROVOD_FUSION_THRESHOLD": None if threshold is None else int(threshold) << 20,
        "HOROVOD_TIMELINE": timeline.get("filename"),
        "HOROVOD_STALL_CHECK_DISABLE": "1" if stalls.get("enabled") is False else None,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": stalls.get("warning-time-seconds"),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": stalls.get("shutdown-time-seconds"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}
