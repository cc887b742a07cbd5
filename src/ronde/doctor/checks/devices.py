"""Check of devices: one for each rank if torch supports CUDA."""

from __future__ import annotations

from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding

__all__ = ["check", "judge"]

CHECK = "devices"


def check(asked: PreflightRequest) -> Finding:
    """Count the devices that a run would use."""
    known = torch_has_cuda()
    return judge(asked.ranks, known, len(cuda_devices(asked.environment)) if known else 0)


def judge(ranks: int, knows_cuda: bool, devices: int) -> Finding:
    """Judge by the number of devices."""
    if not devices:
        why = "no CUDA device is there" if knows_cuda else "torch is built without CUDA"
        return Finding(check=CHECK, level="good", summary=f"ranks run on the CPU: {why}")
    if ranks > devices:
        return Finding(
            check=CHECK,
            level="wrong",
            summary=f"{ranks} ranks need {ranks} CUDA devices, and there are {devices}",
            fix=f'--ranks {devices}, or CUDA_VISIBLE_DEVICES="" for the CPU',
        )
    return Finding(check=CHECK, level="good", summary=f"{devices} CUDA devices for {ranks} ranks")
