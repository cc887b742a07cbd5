"""Nodes of a Ray cluster, and the command that runs on one.

Only this file uses Ray. It runs in separate processes, started like ssh, because a launcher that joined a
cluster itself would get Ray's threads and signal handlers.

    python -m ronde.cluster.ray_nodes ADDRESS                   prints `node:slots`, a line for each
    python -m ronde.cluster.ray_nodes ADDRESS NODE RANKS LINE   runs a shell line there, and passes on streams

On a node the line is run by an actor in a placement group of its own, which holds a CPU for each rank, and a
GPU where the node has any: Ray reserves them until this ends.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ronde.cluster.host_list import HostSlots, parse_hosts
from ronde.errors import UsageError

__all__ = ["nodes_of_ray", "ray_words"]

_JOIN_S = 60.0
_PLACE_S = 50.0
_BLOCK = 1 << 16
# Of the exit codes of this program; those of the shell line pass through.
_NO_RAY, _NO_CLUSTER, _NO_PLACE = 81, 82, 83


def ray_words(address: str) -> tuple[str, ...]:
    """Return the command that starts processes on the nodes of a cluster."""
    return (sys.executable, "-m", "ronde.cluster.ray_nodes", address)


def nodes_of_ray(address: str) -> tuple[HostSlots, ...]:
    """List the live nodes, with slots by their GPUs, or else CPUs.

    Args:
        address: address of the cluster in Ray's form; `auto`: the one of this host.

    Raises:
        UsageError: the cluster does not answer, or Ray is not installed.
    """
    try:
        done = subprocess.run(
            ray_words(address), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_JOIN_S
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"--ray {address}: the cluster has not answered for {_JOIN_S:g} s; see ray status [R165]"
        ) from None
    if done.returncode == _NO_RAY:
        raise UsageError(f"--ray {address} needs the package ray: pip install 'ronde[ray]' [R165]")
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise UsageError(
            f"--ray {address} is not a Ray cluster that can be joined ({last}); see ray status [R165]"
        )
    return parse_hosts(",".join(done.stdout.split()), origin=f"--ray {address}")


class _NodeActor:
    """Ray actor: a process on a node, with its streams."""

    def __init__(self, line: str) -> None:
        # Ray sets it by the CPUs of an actor, but ronde divides threads among ranks.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["sh", "-c", line], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=environment
        )

    def read(self, name: str) -> bytes:
        """Return new bytes of `stdout` or `stderr`; none at its end."""
        return os.read(getattr(self._process, name).fileno(), _BLOCK)

    def write(self, data: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(OSError):  # the process has ended, which its streams show
            if data:
                stdin.write(data)
            else:
                stdin.close()

    def wait(self) -> int:
        return self._process.wait()


def main(words: list[str]) -> int:
    """Run the program, and return its exit code."""
    address, *rest = words
    # Ray writes to stdout, which must have the process's output only.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        return _NO_RAY
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:
        _complain(str(error).splitlines()[0])
        return _NO_CLUSTER
    # Ray lists them in another order each time, and a run that is resumed is to have the same places.
    nodes = sorted(ray.nodes(), key=lambda node: node["NodeManagerAddress"])
    alive = {node["NodeManagerAddress"]: node["Resources"] for node in nodes if node["Alive"]}
    if not rest:
        kind = "GPU" if any("GPU" in resources for resources in alive.values()) else "CPU"
        lines = [
            f"{name}:{int(resources[kind])}\n" for name, resources in alive.items() if resources.get(kind)
        ]
        os.write(out, "".join(lines).encode())
        return 0
    node, ranks, line = rest
    if node not in alive:
        _complain(f"the cluster has no node {node} now [R166]")
        return _NO_PLACE
    try:
        shell = _placed(ray, node, int(ranks), has_gpus="GPU" in alive[node], line=line)
    except ray.exceptions.GetTimeoutError:
        wanted = f"{ranks} GPUs and CPUs" if "GPU" in alive[node] else f"{ranks} CPUs"
        _complain(f"{wanted} are not free on {node} (ray status), and were waited for {_PLACE_S:g} s [R166]")
        return _NO_PLACE
    return _passed_on(ray, shell, out)


def _complain(words: str) -> None:
    os.write(2, f"{words}\n".encode())


def _placed(ray: Any, node: str, ranks: int, *, has_gpus: bool, line: str) -> Any:
    """Place the actor on that node.

    For no ranks it reserves nothing.
    """
    placement_group = importlib.import_module("ray.util.placement_group").placement_group
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    share: dict[str, float] = {"CPU": ranks, "GPU": ranks if has_gpus else 0}
    bundle = {name: count for name, count in share.items() if count}
    group = placement_group([{**bundle, f"node:{node}": 0.001}])
    ray.get(group.ready(), timeout=_PLACE_S)
    actor: Any = ray.remote(_NodeActor).options(
        num_cpus=share["CPU"],
        num_gpus=share["GPU"],
        max_concurrency=4,  # wait for each stream, and for the end
        scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group, 0),
    )
    return actor.remote(line)


def _passed_on(ray: Any, shell: Any, out: int) -> int:
    """Pass streams on until the line has ended; return its exit code."""

    def pass_out(name: str, descriptor: int) -> None:
        with suppress(OSError, ray.exceptions.RayError):
            while data := ray.get(shell.read.remote(name)):
                os.write(descriptor, data)

    def pass_in() -> None:
        with suppress(OSError, ray.exceptions.RayError):
            while data := os.read(0, _BLOCK):
                ray.get(shell.write.remote(data))
            ray.get(shell.write.remote(b""))

    targets: list[Callable[[], None]] = [lambda: pass_out("stdout", out), lambda: pass_out("stderr", 2)]
    readers = [threading.Thread(target=target, daemon=True) for target in targets]
    threading.Thread(target=pass_in, daemon=True).start()
    for thread in readers:
        thread.start()
    try:
        code: int = ray.get(shell.wait.remote())
    except ray.exceptions.RayError as error:
        _complain(f"Ray has lost the actor: {str(error).splitlines()[0]} [R166]")
        return 1
    for thread in readers:
        thread.join()
    return code


if __name__ == "__main__":
    # Exit at once, because Ray's last messages would be taken for the reason of the end.
    os._exit(main(sys.argv[1:]))
