"""The address at which ranks of a scheduler meet, on rank 0's side."""

from __future__ import annotations

from collections.abc import Mapping

from ronde.errors import UsageError

__all__ = ["derived_port", "master"]

# Below the ephemeral ports of systems, so that other programs rarely use one.
_FIRST, _COUNT = 12000, 18000


def derived_port(mark: str) -> int:
    """Derive a port that ranks of one job share, and other jobs mostly avoid."""
    import hashlib  # imported here, because it would slow the start of every other run by 4 ms

    return _FIRST + int.from_bytes(hashlib.sha256(mark.encode()).digest()[:4], "big") % _COUNT


def master(environment: Mapping[str, str], address: str, mark: str) -> tuple[str, int]:
    """Return address and port, by the user's variables or the scheduler.

    Raises:
        UsageError: MASTER_PORT is not a port.
    """
    port = environment.get("MASTER_PORT", "")
    if port and (not port.isdecimal() or not 0 < int(port) < 65536):
        raise UsageError(
            f"MASTER_PORT={port} is not a port; set it to one from 1024 to 65535, or unset it [R162]"
        )
    return environment.get("MASTER_ADDR") or address, int(port) if port else derived_port(mark)
