"""`ronde run`: an ordinary script on many ranks."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ronde.checkpoint.cadence import read_cadence
from ronde.cli.elastic_options import elastic_of, named_by_script
from ronde.cli.explaining import explain
from ronde.cli.hosts_options import hosts_of, is_here_alone, on_ray
from ronde.cli.script_check import check_module, check_script
from ronde.cluster.cores import available_cores
from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.cluster.environment import ClusterEnvironment
from ronde.cluster.host_list import ranks_of_hosts
from ronde.cluster.linux import check_linux
from ronde.cluster.torch_install import check_torch, newer_than_tried
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.attempts import launch_with_policy
from ronde.launch.failure_policy import FailurePolicy
from ronde.launch.job import Job
from ronde.launch.launcher import launch
from ronde.launch.launching_process import launching_process
from ronde.launch.placement import Placement, resolve_placement
from ronde.launch.rank_environment import threads_per_rank
from ronde.launch.run_spec import RunSpec
from ronde.plan import Plan, read_plan
from ronde.plan.grammar import aliases_in
from ronde.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    import typer

__all__ = ["run"]

TORCHRUN = ("-m", "torch.distributed.run")  # it reads PET_* by itself
MOST_SEED = 2**32 - 1  # what numpy takes
TRACED = "1:100"
CHECKPOINT_EVERY, CHECKPOINTS_KEPT = "10m", 2


def run(  # noqa: PLR0913 - one parameter per option
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script, or with -m a module.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS...", help="The script's own, --help included."),
    ] = None,
    ranks: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Ranks; auto: one per CUDA device of this host, or one, or all slots of the hosts.",
        ),
    ] = "auto",
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts", "-H", metavar="HOST:N,...", help="Hosts and their ranks, reached by ssh: a:2,b:2."
        ),
    ] = None,
    hostfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same in a file: a line HOST slots=N, or HOST:N.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Ranks on a Ray cluster: its address, or auto.")
    ] = None,
    ssh_port: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65535, help="Of the hosts' ssh servers.")
    ] = None,
    ssh_command: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="In place of ssh: it is called with a host and a shell line."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE],...", help="Variables that the hosts are to be given."),
    ] = None,
    local_addr: Annotated[
        str | None, typer.Option(metavar="IP", help="By which the hosts reach this one; else they are asked.")
    ] = None,
    plan: Annotated[
        str,
        typer.Option(
            "--plan",
            metavar="PLAN",
            help="A plan such as ddp,bucket-mb=10, or a TOML file; names of other systems are taken, too.",
        ),
    ] = "ddp",
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_SEED, help="Of torch, numpy and random; else drawn, and printed."),
    ] = None,
    rng: Annotated[str | None, typer.Option(metavar="VALUE", help="Short for the plan's rng=VALUE.")] = None,
    servers: Annotated[
        str | None,
        typer.Option(
            metavar="N|ENDPOINTS",
            help="Parameter servers to start beside the ranks, or where some listen: tcp://HOST:PORT,...",
        ),
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE",
            help="What of servers survives them: log, log,sync=always|group, snapshot or none.",
            show_default="log",
        ),
    ] = None,
    server_state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Begin with the tables that the servers of an earlier --run-dir had."
        ),
    ] = None,
    batch_dim: Annotated[
        str | None, typer.Option(metavar="AXIS", help="Short for the plan's batch-dim=AXIS.")
    ] = None,
    loading: Annotated[
        str | None, typer.Option(metavar="VALUE", help="Short for the plan's loading=VALUE.")
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="The script is distributed by itself: run it as torchrun would.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where logs go, instead of the user's state directory.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads per rank, instead of an equal share of the cores.")
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Say only errors and that ranks stand still: no start line, progress, summary.",
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="End the run when ranks wait this long for another.")
    ] = 1800.0,
    publish: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Publish the model so often while it trains, for ronde serve."),
    ] = 0.0,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a timeline of all ranks, for Perfetto; .gz compresses it."),
    ] = None,
    trace_steps: Annotated[
        str | None,
        typer.Option(
            metavar="A:B", help="Of which optimizer steps, from 1.", show_default=f"{TRACED} with --trace"
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR|URL", help="Save the whole run there as it goes on, for --resume."),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="N|TIME",
            help="Steps between checkpoints, or a time: 30s, 10m, 1h.",
            show_default=CHECKPOINT_EVERY,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="K", help="Checkpoints that are kept.", show_default=str(CHECKPOINTS_KEPT)
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, where there is one.")
    ] = False,
    restarts: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Start ranks again after a failure, from the newest checkpoint."
        ),
    ] = 0,
    min_ranks: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Go on with fewer hosts after a failure, down to N ranks."),
    ] = None,
    max_ranks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take in hosts that come, up to N ranks.")
    ] = None,
    host_discovery_script: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A program that prints host:slots, a line for each host there is."),
    ] = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="SCRIPT is a module, found as python -m does.")
    ] = False,
) -> None:
    """Run an ordinary PyTorch script on many ranks, with the numbers it would have on one device.

    Options of ronde stand before SCRIPT; everything behind it is the script's.
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
    count = sum(number for _, number in shares) or _count(ranks, devices, place)
    bounds = (min_ranks, max_ranks, host_discovery_script)
    if is_here_alone(
        shares, where, ssh_command, ssh_port, env, local_addr, *bounds
    ):  # no agent is needed, and rank 0 may have the terminal
        shares = ()
    remote = hosts_of(where, shares, ssh_port, ssh_command, env or [], local_addr)
    endpoints = _endpoints(servers)
    kept, sync = _durability(durability)
    if native and servers is not None and plan == "ddp":
        plan = "ps"  # the program says by its KVStore what servers are to do; only their rule is the plan's
    count_of_servers = str(len(endpoints)) if endpoints else servers
    items = {"servers": count_of_servers, "rng": rng, "batch-dim": batch_dim, "loading": loading}
    shorthand = [f"{key}={value}" for key, value in items.items() if value is not None]
    meant = read_plan(plan, *shorthand, ranks=count, device="cuda" if devices else "cpu")
    for option, value in (("--durability", durability), ("--server-state", server_state)):
        if value is not None:
            _check_starts_servers(f"{option} {value}", endpoints, meant)
    check_module(script) if module else check_script(script)
    _check_restarts(restarts, checkpoint, place, servers if endpoints and any((restarts, *bounds)) else "")
    for option, value in (("--every", every), ("--keep", keep)):
        if value is not None and checkpoint is None:
            raise UsageError(f"{option} {value} needs --checkpoint DIR")
    saves, fits = checkpoint is not None, partial(_fits, str(meant))
    elasticity = elastic_of(bounds, remote, hostfile, where, ranks, count, saves=saves, fits=fits)
    saved = _saved(checkpoint, resume=resume, native=native, plan=str(meant))
    directory = _directory(run_dir, place, parent)
    job = Job(
        run=RunSpec(
            script=script,
            arguments=tuple(arguments or ()),
            module=module,
            plan=str(meant),
            seed=_seed(seed, place) if saved is None else _seed_of(checkpoint, saved, asked=seed),
            native=native,
            threads=threads,
            quiet=quiet,
            timeout=_timeout(timeout),
            servers=endpoints,
            server_token=_token(endpoints),
            durability=kept,
            durability_sync=sync,
            server_state=_server_state(server_state, directory),
            publish=_publish(publish, native=native),
            trace_steps=_traced(trace, trace_steps, native=native, place=place),
            checkpoint=_checkpoint_place(checkpoint),
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
        if newer := newer_than_tried():
            say(newer)
        aliases = aliases_in(plan)
        say(_start_line(job, aliases, asked=ranks, seed_given=seed is not None, where=where, shares=shares))
    if place is not None:
        from ronde.cli.observer import COMMAND
        from ronde.launch.external_launch import become_rank

        become_rank(job, place, COMMAND)
    policy = FailurePolicy.of(job.run, restarts)
    outcome = launch_with_policy(
        job, remote, policy, say, explain=explain, elastic=elasticity, launching=launch
    )
    if trace is not None:
        _write_timeline(job, trace)
    sys.exit(outcome.exit_code)


def _check_restarts(
    restarts: int, checkpoint: str | None, place: ClusterEnvironment | None, servers: str | None
) -> None:
    """Raise `UsageError` where ranks cannot be started again.

    Args:
        servers: that were started by hand, where ranks may be started again.
    """
    if restarts and (checkpoint is None or place is not None):
        why = "needs --checkpoint DIR" if checkpoint is None else "is torchrun's: use its --max-restarts"
        raise UsageError(f"--restarts {restarts} {why}")
    if servers:
        raise UsageError(
            f"--servers {servers} were started by hand and keep what they have when ranks are started again; "
            "give --servers N, or leave out --restarts, --min-ranks and --max-ranks"
        )


def _fits(plan: str, ranks: int) -> bool:
    """Whether a plan can have so many ranks."""
    try:
        read_plan(plan, ranks=ranks)
    except UsageError:
        return False
    return True


def _shares(ranks: str, where: Placement) -> tuple[tuple[str, int], ...]:
    """The hosts with their numbers of ranks; () where ranks are not started on several hosts."""
    if not where.hosts:
        return ()
    return ranks_of_hosts(where.hosts, None if ranks == "auto" else _number_of_ranks(ranks))


def _number_of_ranks(ranks: str) -> int:
    if not ranks.isdecimal() or int(ranks) < 1:
        raise UsageError(f"--ranks {ranks} is neither a number from 1 nor auto; try --ranks 2")
    return int(ranks)


def _count(ranks: str, devices: tuple[str, ...], place: ClusterEnvironment | None) -> int:
    """How many ranks the run has; under torchrun or a scheduler that has been decided already."""
    if ranks != "auto":
        _number_of_ranks(ranks)
    if place is not None:
        if ranks not in ("auto", str(place.world_size)):
            raise UsageError(
                f"--ranks {ranks} contradicts {place.launcher}, which has started {place.world_size}; leave "
                "it out"
            )
        return place.world_size
    return (len(devices) or 1) if ranks == "auto" else int(ranks)


def _endpoints(servers: str | None) -> tuple[str, ...]:
    """Of servers that somebody else has started; none where a number is to be started."""
    if servers is None or servers.isdecimal():
        return ()
    found = tuple(each.strip() for each in servers.split(","))
    for each in found:
        place = re.fullmatch(r"ipc://.+|tcp://.+:(\d+)", each)
        if place is None or not 0 < int(place[1] or 1) < 1 << 16:
            raise UsageError(
                f"--servers {servers} is neither a number nor a list of endpoints such as "
                "tcp://10.0.0.5:4000; try --servers 2"
            )
    if len(set(found)) < len(found):
        raise UsageError(f"--servers {servers} names one server twice; each has an endpoint of its own")
    return found


def _check_starts_servers(option: str, endpoints: tuple[str, ...], plan: Plan) -> None:
    """Raise `UsageError` for an option about servers that this command does not start."""
    if endpoints:
        raise UsageError(
            f"{option} is for servers that ronde run starts, and these were started by hand: leave it out, "
            "and give each `ronde server` a --state DIR"
        )
    if not plan.state.server_count:
        raise UsageError(
            f"{option} is for parameter servers, and plan {plan} has none: leave it out, or give "
            "--servers N with --plan ps or hybrid"
        )


def _durability(text: str | None) -> tuple[str, str]:
    if text is None:
        return "log", "never"
    from ronde.launch.server_config import read_durability

    return read_durability(text)


def _token(endpoints: tuple[str, ...]) -> str:
    if not endpoints:
        return ""
    from ronde.launch.server_config import read_token

    return read_token(os.environ)


def _server_state(path: Path | None, directory: RunDirectory) -> str:
    if path is None:
        return ""
    if path.absolute() == directory.path:
        raise UsageError(
            f"--server-state {path} is the run directory, whose servers begin with nothing; give the run "
            "another by --run-dir DIR"
        )
    return str(path.absolute())


def _timeout(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise UsageError(f"--timeout {seconds:g} is not a number of seconds above 0; try --timeout 1800")
    return seconds


def _publish(seconds: float, *, native: bool) -> float:
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--publish {seconds:g} is not a number of seconds; try --publish 1")
    if seconds and native:
        raise UsageError("--publish needs a script that ronde distributes; leave out --native")
    if seconds and importlib.util.find_spec("safetensors") is None:
        raise UsageError("--publish needs safetensors: pip install 'ronde[serve]'")
    return seconds


def _traced(file: Path | None, steps: str | None, *, native: bool, place: ClusterEnvironment | None) -> str:
    """Of which steps ranks write a timeline; "" for none."""
    if file is None:
        if steps is not None:
            raise UsageError(f"--trace-steps {steps} says of which steps; add --trace FILE to say where to")
        return ""
    if native:
        raise UsageError("--trace needs a script that ronde distributes; leave out --native")
    if place is not None:
        raise UsageError("--trace needs ranks that ronde has started, not torchrun; start them by --ranks N")
    from ronde.trace.recorder import StepRange

    try:
        StepRange.parse(steps or TRACED)
    except ValueError:
        raise UsageError(
            f"--trace-steps {steps} is no range of steps A:B, counted from 1; try --trace-steps {TRACED}"
        ) from None
    if not os.access(file.absolute().parent, os.W_OK | os.X_OK) or file.is_dir():
        raise UsageError(f"--trace {file} cannot be written there; name a file in a folder that is there")
    return steps or TRACED


def _write_timeline(job: Job, file: Path) -> None:
    from ronde.report.timeline import write_timeline

    try:
        made = write_timeline(job.run_directory.path, file)
    except OSError as error:
        say(f"the timeline was not written to {file}: {error.strerror}; its parts are in the run directory")
        return
    if not job.run.quiet:
        say(f"a timeline of {made.spans} spans is in {file}; open it in ui.perfetto.dev or chrome://tracing")
        if made.hosts > 1:
            say(f"clocks of its {made.hosts} hosts agree to {made.error * 1e3:.2f} ms")


def _checkpoint_place(given: str | None) -> str:
    if not given:
        return ""
    return given if "://" in given else os.path.abspath(given)


def _saved(place: str | None, *, resume: bool, native: bool, plan: str) -> int | None:
    """The seed of the run that is resumed; None where the run begins."""
    if place is None:
        if resume:
            raise UsageError("--resume needs --checkpoint DIR, where the run was saved")
        return None
    if native:
        raise UsageError("--checkpoint needs a script that ronde distributes; leave out --native")
    parsed = Plan.parse(plan)
    if parsed.in_local_view and parsed.mesh.cuts_models is not None:
        raise UsageError(
            f"--checkpoint saves cut models that are in step, and under {parsed.item('update')} each replica "
            f"trains by itself; leave out {parsed.item(parsed.mesh.cuts_models)}, or take update=sync"
        )
    from ronde.checkpoint.mirror import Mirror, is_url
    from ronde.trace.checkpoint_manifest import checkpoints_in, latest_manifest

    found = Mirror(place).latest() if is_url(place) else latest_manifest(Path(place))
    if found is None:
        if not is_url(place) and any(checkpoints_in(Path(place))):
            raise UsageError(f"no checkpoint in {place} is whole; choose another folder to begin anew")
        return None  # the first start, too, may say --resume
    if not resume:
        raise UsageError(
            f"--checkpoint {place} has a checkpoint of step {found.step}: go on from it by --resume, or "
            "choose another folder"
        )
    return found.seed


def _directory(path: Path | None, place: ClusterEnvironment | None, parent: int) -> RunDirectory:
    if place is None:
        return RunDirectory.create(path, os.environ)
    from ronde.launch.external_launch import shared_run_id

    return RunDirectory.join(path, shared_run_id(place, parent), os.environ)


def _seed_of(place: str | None, saved: int, *, asked: int | None) -> int:
    """The seed of a run that is resumed."""
    if asked not in (None, saved):
        raise UsageError(
            f"--seed {asked}: the checkpoint in {place} is of a run with seed {saved}; leave it out"
        )
    return saved


def _seed(seed: int | None, place: ClusterEnvironment | None) -> int:
    if seed is not None:
        return seed
    if place is None:
        return int.from_bytes(os.urandom(4), "big") % 2**31
    from ronde.launch.external_launch import shared_seed

    return shared_seed(place)


def _start_line(
    job: Job,
    aliases: tuple[str, ...],
    *,
    asked: str,
    seed_given: bool,
    where: Placement,
    shares: tuple[tuple[str, int], ...],
) -> str:
    """What was decided, in one line: enough to repeat the run."""
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
