"""The devices of a cluster and the links between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ronde.planner.device import Device
from ronde.planner.link import Link

__all__ = ["Cluster", "Group", "Reliability"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Equal nodes: `nodes` of them with `devices` each."""

    nodes: int
    devices: int
    device: Device


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """Failures of nodes, and the cost of coming back from them.

    Attributes:
        between: mean seconds between failures of one node; None where they are not known.
        restart: seconds from a failure to the next step.
        storage: bytes/s at which a node writes a checkpoint; None where that is not known.
    """

    between: float | None = None
    restart: float = 300.0
    storage: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Devices and links of a cluster, with the constants of its cost model.

    Attributes:
        name: the name in the preset or file.
        groups: groups of equal nodes; devices may differ between groups.
        node: the link between devices of a node.
        network: the link between nodes.
        loader: samples/s that a node's loader gives; None without a limit.
        reserved: ratio of the memory that the allocator reserves to the allocated memory.
        context: bytes of a device that libraries take and no allocator counts.
        backend: the library that sums gradients: "nccl" or "gloo".
        sources: the origin of each constant, by its key in the file.
        uncertainty: relative error of predicted seconds, inside the fitted range.
        batches: rows of products for which constants were fitted, from and to; outside intervals are wider.
        crowd: ranks for each processor core that they share; their seconds were measured with all at work.
        price: price of a device for an hour; None where it is not known.
        reliability: failures of its nodes.
        calibration: description of the runs of `--calibrate`; "" without.
        factor: measured seconds over predicted ones, of those runs' steps.
        host_factor: the same for the host's seconds, which the devices' constants hold already.
    """

    name: str
    groups: tuple[Group, ...]
    node: Link
    network: Link
    loader: float | None
    reserved: float
    context: float
    backend: str
    sources: Mapping[str, str]
    uncertainty: float
    batches: tuple[float, float]
    crowd: float = 1.0
    price: float | None = None
    reliability: Reliability = Reliability()
    calibration: str = ""
    factor: float = 1.0
    host_factor: float = 1.0

    @property
    def devices(self) -> int:
        """The number of devices."""
        return sum(group.nodes * group.devices for group in self.groups)

    @property
    def node_size(self) -> int:
        """Devices of the smallest node, by which groups of ranks are laid out."""
        return min(group.devices for group in self.groups)

    @property
    def slowest(self) -> Device:
        """The device that the others wait for: the slowest at a large product."""
        return min(
            (group.device for group in self.groups),
            key=lambda device: max(device.peak.values()) * device.gemm_efficiency * device.sustained,
        )

    @property
    def memory(self) -> float:
        """Bytes of the smallest device that are left for a training."""
        return min(group.device.memory for group in self.groups) - self.context

    def with_devices(self, change: Callable[[Device], Device]) -> Cluster:
        """Return this cluster with each device changed."""
        groups = tuple(dataclasses.replace(group, device=change(group.device)) for group in self.groups)
        return dataclasses.replace(self, groups=groups)

    def resized(self, devices: int) -> Cluster:
        """Return this cluster with `devices` devices, filled in the order of groups.

        The last group grows. One node may be partly used; several are used whole.
        """
        groups: list[Group] = []
        left = devices
        for place, group in enumerate(self.groups):
            last = place == len(self.groups) - 1
            per_node = min(group.devices, left)
            nodes = -(-left // per_node) if last else min(group.nodes, left // per_node)
            groups.append(dataclasses.replace(group, nodes=nodes, devices=per_node))
            left -= nodes * per_node
            if left <= 0:
                break
        return dataclasses.replace(self, groups=tuple(groups))
