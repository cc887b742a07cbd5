"""What must be alike on the hosts of a run before it starts: pure functions of what their agents say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["address_of_all", "differences", "host_environment", "mesh_steps"]

# What ranks go by whoever starts them. Devices are each host's own affair, unless there are to be none.
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "RONDE_LOG")
_NAMES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "CUBLAS_WORKSPACE_CONFIG",
)
_NO_DEVICES = ("", "-1")


def host_environment(
    environment: Mapping[str, str], asked: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """The variables that every host is given, and the names that were asked for and are not set here.

    Args:
        asked: `NAME`, with the value that it has here, or `NAME=VALUE`.
    """
    given = {
        name: value for name, value in environment.items() if name in _NAMES or name.startswith(_PREFIXES)
    }
    if environment.get("CUDA_VISIBLE_DEVICES") in _NO_DEVICES:
        given["CUDA_VISIBLE_DEVICES"] = ""
    missing: list[str] = []
    for item in asked:
        name, has_value, value = item.partition("=")
        if has_value:
            given[name] = value
        elif name in environment:
            given[name] = environment[name]
        else:
            missing.append(name)
    return given, missing


def differences(
    hosts: Sequence[tuple[str, int, Mapping[str, Any]]],
    script: str,
    python: str,
    reference: Mapping[str, Any] | None = None,
) -> list[str]:
    """What keeps the hosts from running one script together, a line each with what to do; [] for nothing.

    Args:
        hosts: of each its name, its ranks, and what its agent says (`agent.about_this_host`).
        script: the path of it; "" for a module.
        python: the interpreter, for the line that mends it.
        reference: what this host says of itself; None: hosts are to be like the first of them.
    """
    first, _, told = hosts[0] if reference is None else ("this host", 0, reference)
    problems: list[str] = []
    for name, _, found in hosts:
        for what in ("python", "ronde", "torch"):
            if found[what] != told[what]:
                mend = (
                    "install the same environment on both"
                    if what == "python"
                    else f"on {name}: {python} -m pip install {what}=={told[what]}"
                )
                problems.append(
                    f"{name} has {what} {found[what] or '(none)'}, {first} has {told[what]}; {mend}"
                )
        if script and not found["script"]:
            problems.append(f"{name} has no {script}; copy the project there, or use a shared file system")
        elif found["script"] != told["script"]:
            problems.append(f"{name} has another {script} than {first}; copy the project there again")
    return problems + _device_problems(hosts)


def _device_problems(hosts: Sequence[tuple[str, int, Mapping[str, Any]]]) -> list[str]:
    with_devices = [name for name, _, found in hosts if found["devices"]]
    if not with_devices:
        return []
    problems: list[str] = []
    machines: dict[str, str] = {}
    for name, ranks, found in hosts:
        offered = len(found["devices"])
        if not offered:
            problems.append(
                f"{name} offers no CUDA device, {with_devices[0]} does; leave {name} out, or run on the CPU "
                'with CUDA_VISIBLE_DEVICES=""'
            )
        elif ranks > offered:
            problems.append(
                f"{ranks} ranks on {name} need a CUDA device each, it offers {offered}: {name}:{offered}"
            )
        if found["machine"] in machines:
            problems.append(
                f"{machines[found['machine']]} and {name} are one machine, whose devices two hosts cannot "
                "have; name it once, with all its slots"
            )
        machines[found["machine"]] = name
    return problems


def address_of_all(
    tried: Sequence[str], reached: Sequence[tuple[str, Mapping[str, str]]]
) -> tuple[str, list[str]]:
    """The first address that every host has reached, "" if there is none; then the hosts that failed.

    Args:
        tried: the launcher's addresses, likeliest first.
        reached: of each host its name, and the addresses that it has reached.
    """
    for address in tried:
        if all(address in found for _, found in reached):
            return address, []
    nowhere = [name for name, found in reached if not found]
    return "", nowhere or [name for name, _ in reached]


def mesh_steps(hosts: int) -> list[int]:
    """How far away the hosts are that each one tries to reach: all of few hosts, of many at most ten.

    Powers of two, by which every host is within a few steps of every other, both near ones and far ones.
    """
    if hosts <= 9:
        return list(range(1, hosts))
    return [1 << power for power in range(10) if 1 << power < hosts]
