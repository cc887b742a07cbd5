"""The place of a process in Slurm's `srun`, and the nodes of an allocation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ronde.cluster.environment import ClusterEnvironment, number_in
from ronde.cluster.host_list import HostSlots
from ronde.cluster.master import master
from ronde.errors import UsageError

__all__ = ["allocation", "expand_nodes", "expand_tasks", "has_own_devices", "task_of_step"]

_RANGE = re.compile(r"\[([^\[\]]*)\]")


def task_of_step(environment: Mapping[str, str]) -> ClusterEnvironment | None:
    """Read the place of a task that `srun` has started; None outside of one.

    In a batch script SLURM_PROCID is set as well; only a job step also has a step number.

    Raises:
        UsageError: a variable does not have Slurm's form.
    """
    count = environment.get("SLURM_STEP_NUM_TASKS", "")
    if "SLURM_PROCID" not in environment or "SLURM_STEP_ID" not in environment or count in ("", "1"):
        return None
    local = number_in(environment, "SLURM_LOCALID", "srun")
    node = number_in(environment, "SLURM_NODEID", "srun")
    tasks = expand_tasks(environment.get("SLURM_STEP_TASKS_PER_NODE", count))
    nodes = expand_nodes(environment.get("SLURM_STEP_NODELIST", "localhost"))
    if node >= len(tasks):
        raise UsageError(
            f"SLURM_NODEID={node} is not one of the nodes of SLURM_STEP_TASKS_PER_NODE; start the ranks by "
            "srun [R160]"
        )
    job = f"{environment.get('SLURM_JOB_ID', '0')}.{environment['SLURM_STEP_ID']}"
    address, port = master(environment, nodes[0] if len(nodes) > 1 else "127.0.0.1", f"slurm {job}")
    return ClusterEnvironment(
        rank=number_in(environment, "SLURM_PROCID", "srun"),
        world_size=number_in(environment, "SLURM_STEP_NUM_TASKS", "srun"),
        local_rank=local,
        local_world_size=tasks[node],
        master_address=address,
        master_port=port,
        run_id=f"slurm-{job}",
        restart_count=int(environment.get("SLURM_RESTART_COUNT", "0") or "0"),
        agent_store=False,
        launcher="srun",
        node=node,
        nodes=len(nodes),
    )


def allocation(environment: Mapping[str, str], devices: int) -> tuple[HostSlots, ...]:
    """Read the nodes of the surrounding allocation, with their tasks.

    It is () inside of `srun`.

    Args:
        devices: CUDA devices of this node, for an allocation without a number of tasks per node.
    """
    if "SLURM_JOB_ID" not in environment or environment.get("SLURM_JOB_NUM_NODES", "1") in ("", "1"):
        return ()
    nodes = expand_nodes(environment.get("SLURM_JOB_NODELIST", ""))
    if "SLURM_NTASKS" in environment or "SLURM_NTASKS_PER_NODE" in environment:
        tasks = expand_tasks(environment.get("SLURM_TASKS_PER_NODE", "1"))
    else:
        tasks = [devices or 1]
    tasks += tasks[-1:] * (len(nodes) - len(tasks))
    return tuple(HostSlots(node, count) for node, count in zip(nodes, tasks))


def has_own_devices(environment: Mapping[str, str]) -> bool:
    """Return whether each task of the step sees its own CUDA devices only."""
    return "SLURM_GPUS_PER_TASK" in environment or "gpu" in environment.get("SLURM_TRES_PER_TASK", "")


def expand_nodes(text: str) -> list[str]:
    """Expand Slurm's list of nodes: `a[1-3,7],b` is a1, a2, a3, a7, b.

    Raises:
        UsageError: the text is not such a list.
    """
    names = [name for word in _words(text) for name in _expand(word, text)]
    if not names:
        raise UsageError("the list of Slurm's nodes is empty; start inside of an allocation [R160]")
    return names


def expand_tasks(text: str) -> list[int]:
    """Expand the number of tasks of each node: `2(x3),1` is 2, 2, 2, 1.

    Raises:
        UsageError: the text is not such a list.
    """
    found: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word.strip())
        if match is None:
            raise UsageError(
                f"{text!r} is not a list of Slurm's tasks per node; start the ranks by srun [R160]"
            )
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _words(text: str) -> Iterator[str]:
    """Split at commas outside of brackets."""
    depth, word = 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            yield word
            word = ""
        else:
            word += letter
    if word:
        yield word


def _expand(word: str, whole: str) -> Iterator[str]:
    match = _RANGE.search(word)
    if match is None:
        if "[" in word or "]" in word:
            raise UsageError(
                f"{whole!r} is not a list of Slurm's nodes; start inside of an allocation [R160]"
            )
        yield word.strip()
        return
    before, behind = word[: match.start()], word[match.end() :]
    for part in match[1].split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise UsageError(
                f"{whole!r} is not a list of Slurm's nodes; start inside of an allocation [R160]"
            )
        for number in range(int(first), int(last or first) + 1):
            yield from _expand(f"{before}{number:0{len(first)}d}{behind}", whole)
