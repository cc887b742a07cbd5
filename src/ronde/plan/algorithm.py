"""Choice of the algorithm that sums gradients, by the plan or the hosts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Literal

from ronde.errors import PlanError
from ronde.plan.communication import Algorithm

__all__ = ["AlgorithmChoice", "choose", "inside_model", "keeps_order_of_stores"]

# Up to so many hosts with one rank each use Gloo's ring. It has a message in sequence for each of them.
_FEW_HOSTS = 16

Chosen = Literal["shared-memory", "hierarchical", "ring", "tree", "backend"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AlgorithmChoice:
    """An algorithm with the reason for it.

    Attributes:
        algorithm: `backend` leaves it to Gloo or NCCL.
        reason: a few words for messages.
    """

    algorithm: Chosen
    reason: str

    def __str__(self) -> str:
        words = {
            "shared-memory": "shared memory",
            "hierarchical": "shared memory within each host, trees or a ring across hosts",
            "ring": "a ring over all ranks",
            "tree": "two trees over all ranks",
            "backend": "the backend's own",
        }
        return f"{words[self.algorithm]} ({self.reason})"


def keeps_order_of_stores(machine: str | None = None) -> bool:
    """Return whether this kind of processor has total store order; shared memory needs it.

    Total store order: other cores see a core's stores in program order.
    """
    return (machine or os.uname().machine).lower() in ("x86_64", "amd64")


def choose(
    algorithm: Algorithm, sizes: Sequence[int], *, device: str = "cpu", machine: str | None = None
) -> AlgorithmChoice:
    """Choose the algorithm for hosts of `sizes` ranks each.

    Args:
        device: "cpu" or "cuda".
        machine: the hosts' kind of processor; None: this host's.

    Raises:
        PlanError: the algorithm that the plan names does not work on these hosts.
    """
    if algorithm == "auto":
        return _fitting(sizes, device, keeps_order_of_stores(machine))
    asked = f"algorithm={algorithm}"
    if device != "cpu":
        raise PlanError(f"{asked} is for ranks on the CPU; NCCL chooses by itself: use algorithm=auto [R211]")
    if algorithm in ("shared-memory", "hierarchical") and not keeps_order_of_stores(machine):
        raise PlanError(
            f"{asked} shares memory as x86-64 processors do, and this is {machine or os.uname().machine}; "
            "use algorithm=auto [R211]"
        )
    if algorithm == "shared-memory" and len(sizes) > 1:
        raise PlanError(
            f"{asked} needs all ranks on one host, and they are on {len(sizes)}; use "
            "algorithm=hierarchical [R211]"
        )
    if algorithm == "hierarchical" and len(sizes) == 1:
        return AlgorithmChoice(algorithm="shared-memory", reason=f"{asked}, and there is one host only")
    return AlgorithmChoice(algorithm=algorithm, reason=asked)


def inside_model(choice: AlgorithmChoice | str) -> str:
    """Describe the exchange between ranks that share one batch.

    Each has a part of the model, or of its sequences.

    Args:
        choice: choice for the group of these ranks.
    """
    return f"of the whole batch on each rank (data=1); inside of the model ranks exchange by {choice}"


def _fitting(sizes: Sequence[int], device: str, ordered: bool) -> AlgorithmChoice:
    if sum(sizes) == 1:
        return AlgorithmChoice(algorithm="backend", reason="nothing travels, there is one rank")
    if device != "cpu":
        return AlgorithmChoice(algorithm="backend", reason="NCCL knows the links between devices")
    if max(sizes) == 1 and len(sizes) > _FEW_HOSTS:
        return AlgorithmChoice(algorithm="hierarchical", reason=f"{len(sizes)} hosts with one rank each")
    if max(sizes) == 1:
        return AlgorithmChoice(algorithm="backend", reason="Gloo, one rank on each host")
    if not ordered:
        return AlgorithmChoice(algorithm="backend", reason="Gloo, the processor is not of the kind x86-64")
    if len(sizes) == 1:
        return AlgorithmChoice(algorithm="shared-memory", reason="all ranks are on one host")
    return AlgorithmChoice(algorithm="hierarchical", reason=f"{len(sizes)} hosts, several ranks on one host")
