"""Which ranks meet along which axis."""

from __future__ import annotations

from ronde.cluster.mesh import AXES, MeshOfRanks
from ronde.plan.mesh import Mesh


def test_tensor_groups_are_neighbours():
    mesh = MeshOfRanks.of(Mesh(data=2, tensor=2, pipeline=2))
    assert mesh.ranks == 8
    assert [mesh.members(rank, "tensor") for rank in (0, 3, 6)] == [(0, 1), (2, 3), (6, 7)]
    assert [mesh.members(rank, "data") for rank in (0, 3, 6)] == [(0, 2), (1, 3), (4, 6)]
    assert [mesh.members(rank, "pipeline") for rank in (0, 3, 6)] == [(0, 4), (3, 7), (2, 6)]


def test_coordinates_tell_ranks_apart():
    mesh = MeshOfRanks((2, 3, 1, 2))
    places = {tuple(mesh.coordinate(rank, axis) for axis in AXES) for rank in range(mesh.ranks)}
    assert len(places) == mesh.ranks
    for rank in range(mesh.ranks):
        assert all(rank in mesh.members(rank, axis) for axis in AXES)
