"""`ronde run`: an ordinary script on many ranks."""

from __future__ import annotations

import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ronde.checkpoint.cadence import read_cadence
from ronde.cli.checkpoint_options import (
    check_restarts,
    checkpoint_place,
    resumed_seed,
    seed_of_checkpoint,
    seed_of_run,
)
from ronde.cli.elastic_options import elastic_of, named_by_script
from ronde.cli.explaining import explain
from ronde.cli.hosts_options import hosts_of, is_here_alone, on_ray
from ronde.cli.metrics_option import METRICS_HELP, metrics_socket, serving_metrics
from ronde.cli.script_check import check_module, check_script
from ronde.cli.server_options import (
    check_packages,
    check_starts_servers,
    durability_of,
    endpoints_of,
    publish_interval,
    server_state_of,
    token_of,
)
from ronde.cli.trace_options import TRACED_STEPS, traced_steps, write_run_timeline
from ronde.cluster.cores import available_cores
from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.cluster.environment import ClusterEnvironment
from ronde.cluster.host_list import ranks_of_hosts
from ronde.cluster.linux import check_linux
from ronde.cluster.torch_install import check_torch, newer_than_tried
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.failure_policy import FailurePolicy
from ronde.launch.job import LaunchJob
from ronde.launch.launcher import launch
from ronde.launch.launching_process import launching_process
from ronde.launch.placement import Placement, resolve_placement
from ronde.launch.rank_environment import threads_per_rank
from ronde.launch.restart_loop import launch_with_policy
from ronde.launch.run_spec import RunSpec
from ronde.launch.shared_devices import sharing_note
from ronde.plan import read_plan
from ronde.plan.grammar import aliases_in
from ronde.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    import typer

__all__ = ["count_ranks", "run"]

TORCHRUN = ("-m", "torch.distributed.run")  # torchrun reads PET_* itself
MOST_SEED = 2**32 - 1  # the largest seed of numpy
CHECKPOINT_EVERY, CHECKPOINTS_KEPT = "10m", 2

# Groups of options in the help; options without one are those that people need first.
RANKS_AND_HOSTS = "Ranks and hosts"
PLAN = "Plan"
FAILURES = "Checkpoints and failures"
SERVERS = "Servers"
LOGS = "Logs and traces"


def run(  # noqa: PLR0913 - one parameter per option
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Python script, or with -m a module.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS...", help="Arguments of the script, --help included."),
    ] = None,
    ranks: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Number of ranks. auto: one per CUDA device, or every slot of the hosts, else one.",
        ),
    ] = "auto",
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts", "-H", metavar="HOST:N,...", help="Hosts and their ranks, started by ssh: a:2,b:2."
        ),
    ] = None,
    plan: Annotated[
        str,
        typer.Option(
            "--plan",
            metavar="PLAN",
            help="Parallel plan, such as zero2,precision=bf16 or tensor=2, or a TOML file.",
        ),
    ] = "ddp",
    servers: Annotated[
        str | None,
        typer.Option(
            metavar="N|ENDPOINTS",
            help="Parameter servers to start, or addresses of running ones: tcp://HOST:PORT,...",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR|URL", help="Save the whole run to this directory while it trains."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint, if there is one.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=MOST_SEED, help="Seed of torch, numpy and random; drawn and printed if absent."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a timeline of all ranks for Perfetto; .gz compresses it."),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print errors and stalls only: no start line, progress, summary."),
    ] = False,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")
    ] = False,
    hostfile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Hosts in a file, a line HOST slots=N or HOST:N each.",
            rich_help_panel=RANKS_AND_HOSTS,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Start ranks on a Ray cluster: its address, or auto.",
            rich_help_panel=RANKS_AND_HOSTS,
        ),
    ] = None,
    ssh_port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=65535,
            help="Port of the hosts' ssh servers.",
            rich_help_panel=RANKS_AND_HOSTS,
        ),
    ] = None,
    ssh_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Program to call in place of ssh, with a host and a shell line.",
            rich_help_panel=RANKS_AND_HOSTS,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE],...",
            help="Environment variables to set on other hosts.",
            rich_help_panel=RANKS_AND_HOSTS,
        ),
    ] = None,
    local_addr: Annotated[
        str | None,
        typer.Option(
            metavar="IP",
            help="Address by which other hosts reach this one; found by asking them if absent.",
            rich_help_panel=RANKS_AND_HOSTS,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads of each rank; an equal share of the cores if absent.",
            rich_help_panel=RANKS_AND_HOSTS,
        ),
    ] = None,
    native: Annotated[
        bool,
        typer.Option(
            "--native",
            help="Start a script that is already distributed, as torchrun does.",
            rich_help_panel=RANKS_AND_HOSTS,
        ),
    ] = False,
    rng: Annotated[
        str | None,
        typer.Option(metavar="VALUE", help="Same as rng=VALUE in the plan.", rich_help_panel=PLAN),
    ] = None,
    batch_dim: Annotated[
        str | None,
        typer.Option(metavar="AXIS", help="Same as batch-dim=AXIS in the plan.", rich_help_panel=PLAN),
    ] = None,
    loading: Annotated[
        str | None,
        typer.Option(metavar="VALUE", help="Same as loading=VALUE in the plan.", rich_help_panel=PLAN),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="N|TIME",
            help="Steps between checkpoints, or a time: 30s, 10m, 1h.",
            show_default=CHECKPOINT_EVERY,
            rich_help_panel=FAILURES,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Number of checkpoints to keep.",
            show_default=str(CHECKPOINTS_KEPT),
            rich_help_panel=FAILURES,
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Restarts after a failure, from the newest checkpoint.",
            rich_help_panel=FAILURES,
        ),
    ] = 0,
    min_ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Continue with fewer hosts after a failure, with at least N ranks.",
            rich_help_panel=FAILURES,
        ),
    ] = None,
    max_ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Admit new hosts while it trains, up to N ranks.",
            rich_help_panel=FAILURES,
        ),
    ] = None,
    host_discovery_script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Program that prints the available hosts, a line host:slots each.",
            rich_help_panel=FAILURES,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="End the run when ranks have waited this long for another rank.",
            rich_help_panel=FAILURES,
        ),
    ] = 1800.0,
    durability: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE",
            help="How servers persist tables: log, log,sync=always|group, snapshot or none.",
            show_default="log",
            rich_help_panel=SERVERS,
        ),
    ] = None,
    server_state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Start with the tables of the servers of an earlier --run-dir.",
            rich_help_panel=SERVERS,
        ),
    ] = None,
    publish: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Publish the model at this interval for ronde serve; 0: never.",
            rich_help_panel=SERVERS,
        ),
    ] = 0.0,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of logs and evidence; a new one below the user's state directory if absent.",
            rich_help_panel=LOGS,
        ),
    ] = None,
    trace_steps: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help="Optimizer steps to trace, counted from 1.",
            show_default=f"{TRACED_STEPS} with --trace",
            rich_help_panel=LOGS,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="PORT|HOST:PORT", help=METRICS_HELP, rich_help_panel=LOGS),
    ] = None,
) -> None:
    """Run an ordinary PyTorch script on many ranks, with the numbers of one device.

    Options of ronde come before SCRIPT. Everything after SCRIPT belongs to the script.
    """
    check_linux()
    check_torch()
    devices = cuda_devices(os.environ) if torch_has_cuda() else ()
    parent = launching_process(os.getppid())
    named = named_by_script(host_discovery_script, hosts, hostfile) or hosts
    where = (
        on_ray(ray, named, hostfile)
        if ray is not None
        else resolve_placement(named, hostfile, os.environ, devices=len(devices), parent=parent)
    )
    if where.by_torchrun:
        os.execv(sys.executable, [sys.executable, *TORCHRUN, "-m", "ronde", *sys.argv[1:]])
    place = where.place
    shares = _shares(ranks, where)
    count = sum(number for _, number in shares) or count_ranks(ranks, devices, place)
    bounds = (min_ranks, max_ranks, host_discovery_script)
    if is_here_alone(
        shares, where, ssh_command, ssh_port, env, local_addr, *bounds
    ):  # no agent is needed, and rank 0 may have the terminal
        shares = ()
    remote = hosts_of(where, shares, ssh_port, ssh_command, env or [], local_addr)
    endpoints = endpoints_of(servers)
    kept, sync = durability_of(durability)
    if native and servers is not None and plan == "ddp":
        plan = "ps"  # the program's KVStore decides the servers' work; the plan only sets their update rule
    count_of_servers = str(len(endpoints)) if endpoints else servers
    items = {"servers": count_of_servers, "rng": rng, "batch-dim": batch_dim, "loading": loading}
    shorthand = [f"{key}={value}" for key, value in items.items() if value is not None]
    meant = read_plan(plan, *shorthand, ranks=count, device="cuda" if devices else "cpu")
    check_packages(meant.state.server_count)
    for option, value in (("--durability", durability), ("--server-state", server_state)):
        if value is not None:
            check_starts_servers(f"{option} {value}", endpoints, meant)
    check_module(script) if module else check_script(script)
    check_restarts(restarts, checkpoint, place, servers if endpoints and any((restarts, *bounds)) else "")
    for option, value in (("--every", every), ("--keep", keep)):
        if value is not None and checkpoint is None:
            raise UsageError(f"{option} {value} needs --checkpoint DIR [R500]")
    saves, fits = checkpoint is not None, partial(_fits, str(meant))
    elasticity = elastic_of(bounds, remote, hostfile, where, ranks, count, saves=saves, fits=fits)
    saved = seed_of_checkpoint(checkpoint, resume=resume, native=native, plan=str(meant))
    scraped = metrics_socket(metrics, place, quiet=quiet)
    directory = _directory(run_dir, place, parent)
    job = LaunchJob(
        run=RunSpec(
            script=script,
            arguments=tuple(arguments or ()),
            module=module,
            plan=str(meant),
            seed=seed_of_run(seed, place) if saved is None else resumed_seed(checkpoint, saved, asked=seed),
            native=native,
            threads=threads,
            quiet=quiet,
            timeout=_timeout(timeout),
            servers=endpoints,
            server_token=token_of(endpoints),
            durability=kept,
            durability_sync=sync,
            server_state=server_state_of(server_state, directory),
            publish=publish_interval(publish, native=native),
            trace_steps=traced_steps(trace, trace_steps, native=native, place=place),
            checkpoint=checkpoint_place(checkpoint),
            checkpoint_every=read_cadence(CHECKPOINT_EVERY if every is None else every),
            checkpoint_keep=CHECKPOINTS_KEPT if keep is None else keep,
            resume=saved is not None,
        ),
        ranks=count,
        run_directory=directory,
        environment=os.environ,
        devices=devices,
    )
    if not quiet and (place is None or place.rank == 0):
        start = _start_line(
            job, aliases_in(plan), asked=ranks, seed_given=seed is not None, where=where, shares=shares
        )
        shared = "" if shares else sharing_note(devices[:count])
        for line in filter(None, (newer_than_tried(), start, shared)):
            say(line)
    if place is not None:
        from ronde.cli.observer import COMMAND
        from ronde.launch.external_launch import become_rank

        become_rank(job, place, COMMAND, scraped)
    with serving_metrics(job, scraped):
        outcome = launch_with_policy(
            job,
            remote,
            FailurePolicy.of(job.run, restarts),
            say,
            explain=explain,
            elastic=elasticity,
            launching=launch,
        )
    if trace is not None:
        write_run_timeline(job, trace)
    sys.exit(outcome.exit_code)


def _fits(plan: str, ranks: int) -> bool:
    """Return whether a plan can have this number of ranks."""
    try:
        read_plan(plan, ranks=ranks)
    except UsageError:
        return False
    return True


def _shares(ranks: str, where: Placement) -> tuple[tuple[str, int], ...]:
    """Return hosts with their numbers of ranks; () without other hosts."""
    if not where.hosts:
        return ()
    return ranks_of_hosts(where.hosts, None if ranks == "auto" else _number_of_ranks(ranks))


def _number_of_ranks(ranks: str) -> int:
    if not ranks.isdecimal() or int(ranks) < 1:
        raise UsageError(f"--ranks {ranks} is neither a number from 1 nor auto; try --ranks 2 [R178]")
    return int(ranks)


def count_ranks(ranks: str, devices: tuple[str, ...], place: ClusterEnvironment | None) -> int:
    """Return the number of ranks; torchrun and schedulers decide it themselves."""
    if ranks != "auto":
        _number_of_ranks(ranks)
    if place is not None:
        if ranks not in ("auto", str(place.world_size)):
            raise UsageError(
                f"--ranks {ranks} contradicts {place.launcher}, which has started {place.world_size}; leave "
                "it out [R180]"
            )
        return place.world_size
    return (len(devices) or 1) if ranks == "auto" else int(ranks)


def _timeout(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"--timeout {seconds:g} is not a number of seconds above 0; try --timeout 1800 [R179]"
        )
    return seconds


def _directory(path: Path | None, place: ClusterEnvironment | None, parent: int) -> RunDirectory:
    if place is None:
        return RunDirectory.create(path, os.environ)
    from ronde.launch.external_launch import shared_run_id

    return RunDirectory.join(path, shared_run_id(place, parent), os.environ)


def _start_line(
    job: LaunchJob,
    aliases: tuple[str, ...],
    *,
    asked: str,
    seed_given: bool,
    where: Placement,
    shares: tuple[tuple[str, int], ...],
) -> str:
    """Format the first line of a run, enough to repeat it."""
    cores = available_cores()
    many = f"{job.ranks} rank{'s' if job.ranks > 1 else ''} on {'cuda' if job.devices else 'cpu'}"
    threads = threads_per_rank(job.environment, asked=job.run.threads, cores=cores, ranks=job.ranks)
    place = where.place
    if shares:
        names = ", ".join(f"{name}:{count}" for name, count in shares)
        many = f"{job.ranks} rank{'s' if job.ranks > 1 else ''} on {names} (from {where.origin})"
    elif place is not None:
        many += f", started by {place.launcher}"
    elif threads is not None:
        many += f", {threads} thread{'s' if threads > 1 else ''} each"
    elif asked == "auto" and not job.devices:
        many += f" (one process already uses all {cores} cores; --ranks N for more)"
    origin = "" if seed_given or place is None else f" (from {place.launcher}'s run id)"
    plan = f"{job.run.plan} ({', '.join(aliases)})" if aliases else job.run.plan
    return f"seed {job.run.seed}{origin}, {many}, plan {plan}, run directory {job.run_directory.path}"
