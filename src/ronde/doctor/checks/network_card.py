"""Check of network cards, some of which have no connection."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding

__all__ = ["check", "judge"]

CHECK = "network-card"
_VIRTUAL = re.compile(r"(docker|veth|br-|virbr|cni|flannel|cali|tun|tap|lo$|dummy|podman)")
_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def check(asked: PreflightRequest) -> Finding:
    """Look at /sys/class/net."""
    root = Path("/sys/class/net")
    states: dict[str, str] = {}
    for name in sorted(os.listdir(root)) if root.is_dir() else []:
        try:
            states[name] = (root / name / "operstate").read_text().strip()
        except OSError:
            continue
    up = [name for name, state in states.items() if state in ("up", "unknown") and name != "lo"]
    infiniband = sorted(os.listdir("/sys/class/infiniband")) if os.path.isdir("/sys/class/infiniband") else []
    return judge(up, infiniband, asked.environment)


def judge(cards: Sequence[str], infiniband: Sequence[str], environment: Mapping[str, str]) -> Finding:
    """Judge by the cards that are up."""
    real = [name for name in cards if not _VIRTUAL.match(name)]
    for variable in _VARIABLES:
        named = environment.get(variable, "")
        if variable.startswith("GLOO") and named.startswith(("^", "=")):
            return Finding(
                check=CHECK,
                level="wrong",
                summary=f"{variable}={named}: Gloo takes a name, and knows no {named[0]}, which is NCCL's",
                fix=f"{variable}={real[0] if real else 'NAME'}",
            )
        if (
            named
            and not named.startswith("^")
            and not any(card.startswith(named.lstrip("=")) for card in (*cards, "lo"))
        ):
            return Finding(
                check=CHECK,
                level="wrong",
                summary=f"{variable}={named}, and no such card is up, but {', '.join(cards) or 'none'}",
                fix=f"{variable}={real[0] if real else 'NAME'}",
            )
    if infiniband and environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return Finding(
            check=CHECK,
            level="note",
            summary=f"NCCL_IB_DISABLE is set, so InfiniBand ({', '.join(infiniband)}) is not used",
            fix="unset NCCL_IB_DISABLE",
        )
    if len(cards) > 1 and len(real) != 1:
        return Finding(
            check=CHECK,
            level="note",
            summary=f"several network cards are up: {', '.join(cards)}",
            fix="with several hosts, name the one between them: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME",
        )
    return Finding(
        check=CHECK, level="good", summary=f"network cards that are up: {', '.join(cards) or 'none'}"
    )
