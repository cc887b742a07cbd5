"""CUDA devices shared by ranks of a host, and NCCL's variables for them.

NCCL refuses two ranks on one device of one host, and takes the host from NCCL_HOSTID. With another one for
each rank it sees several hosts, and sends by sockets: right, and far slower than between devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ronde.launch.rank_config import RankPlace

__all__ = ["deal", "is_shared", "nccl_environment", "sharing_note"]


def deal(devices: Sequence[str], ranks: int) -> tuple[str, ...]:
    """Assign devices to ranks in turn; with fewer devices than ranks they are shared."""
    return tuple(devices[rank % len(devices)] for rank in range(ranks))


def is_shared(devices: Sequence[str]) -> bool:
    """Return whether a device is assigned to more than one rank."""
    return len(set(devices)) < len(devices)


def nccl_environment(place: RankPlace, given: Mapping[str, str]) -> dict[str, str]:
    """Make the variables of NCCL for a rank of a host with shared devices.

    Args:
        given: the user's variables, whose choice of a network remains.
    """
    made = {
        "NCCL_HOSTID": f"{place.host}-{place.local_rank}",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    }
    if place.hosts == 1 and place.local_world_size == place.world_size:
        network = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        made |= {name: given.get(name, value) for name, value in network.items()}
    return made


def sharing_note(devices: Sequence[str]) -> str:
    """Return the note of ranks with shared devices; "" where each has its own."""
    if not is_shared(devices):
        return ""
    count = len(set(devices))
    return (
        f"{len(devices)} ranks share {count} CUDA device{'s' if count > 1 else ''}, as CUDA_VISIBLE_DEVICES "
        "names them: NCCL sends by sockets: results are right, but it is slow; for speed name one device "
        "for each rank [R186]"
    )
