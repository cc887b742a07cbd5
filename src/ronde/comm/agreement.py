"""One value for all ranks: that of rank 0."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import PeerLost

__all__ = ["Agreement"]

_FLOAT, _INTEGER, _OTHER = range(3)


class Agreement:
    """Function of a name and a value, called by all ranks; returns rank 0's.

    A number of 64 bits takes one small broadcast: scripts that time their steps ask several times a step.

    Attributes:
        proposed: function of the name and rank 0's own value, which returns rank 0's proposal; `ronde verify`
            proposes the values of plain python.
        around: function that is called in place of each question, with the name and the question, or None; a
            run with checkpoints records answers by it.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.proposed: Callable[[str, Any], Any] = lambda name, value: value
        self.around: Callable[[str, Callable[[], Any]], Any] | None = None

    def __call__(self, name: str, value: Any) -> Any:
        if self.around is not None:
            return self.around(name, lambda: self._ask(name, value))
        return self._ask(name, value)

    def _ask(self, name: str, value: Any) -> Any:
        if self._comm.rank == 0:
            value = self.proposed(name, value)
        kind, bits = _packed(value)
        device = self._comm.control_device
        sent = torch.tensor([zlib.crc32(name.encode()), kind, bits], dtype=torch.int64, device=device)
        place, kind, bits = self._comm.broadcast(sent).tolist()
        if place != zlib.crc32(name.encode()):
            raise PeerLost(
                f"Rank {self._comm.rank} asks for {name} while rank 0 asks for something else: "
                f"the ranks take different paths through the script. [R190]"
            )
        if kind == _OTHER:
            return self._comm.broadcast_object(value)
        return bits if kind == _INTEGER else struct.unpack("d", struct.pack("q", bits))[0]


def _packed(value: Any) -> tuple[int, int]:
    if isinstance(value, float):
        return _FLOAT, struct.unpack("q", struct.pack("d", value))[0]
    if type(value) is int and -(2**63) <= value < 2**63:
        return _INTEGER, value
    return _OTHER, 0
