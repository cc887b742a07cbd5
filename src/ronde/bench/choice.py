"""Checks of names against the known ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.errors import UsageError

__all__ = ["DEVICES", "check_device", "check_known"]

DEVICES = ("cpu", "cuda")


def check_known(asked: Sequence[str], known: Collection[str], *, what: str) -> None:
    """Refuse an unknown name.

    Raises:
        UsageError: a name is unknown; the message has the known ones, and `what` in the singular.
    """
    for name in asked:
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}; choose among {', '.join(known)} [R850]")


def check_device(device: str, environment: Mapping[str, str]) -> None:
    """Refuse an unknown kind of device, or one that is missing here.

    Raises:
        UsageError: the kind is unknown, or the device is missing.
    """
    check_known([device], DEVICES, what="--device")
    if device == "cuda" and not (torch_has_cuda() and cuda_devices(environment)):
        raise UsageError(
            "--device cuda needs a CUDA device and a torch built for it, and one of them is missing here; "
            "leave it out to measure on the CPU [R850]"
        )
