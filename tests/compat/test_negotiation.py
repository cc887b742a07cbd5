"""What is exchanged next: readiness, order, fusion, groups, mismatches, joined ranks."""

from __future__ import annotations

from typing import Any

from ronde.compat.negotiation import Negotiation, TensorRequest


def request(name: str, **changed: Any) -> TensorRequest:
    fields: dict[str, Any] = {"kind": "allreduce", "dtype": "float32", "shape": (4,), "nbytes": 16}
    return TensorRequest(name=name, **{**fields, "operation": "sum", **changed})


def names(negotiation: Negotiation) -> list[list[str]]:
    """Of all that is ready, what is exchanged together."""
    found = []
    while (response := negotiation.take()) is not None:
        found.append([each.name for each in response.requests])
    return found


def test_a_tensor_is_ready_when_all_have_submitted_it() -> None:
    negotiation = Negotiation(2, 0)
    negotiation.add(0, request("a"))
    negotiation.add(1, request("b"))
    assert negotiation.take() is None
    negotiation.add(0, request("b"))
    negotiation.add(1, request("a"))
    assert names(negotiation) == [["b"], ["a"]]


def test_small_sums_of_a_kind_are_exchanged_together() -> None:
    negotiation = Negotiation(2, 48)
    for rank in (0, 1):
        for name in "abcd":
            negotiation.add(rank, request(name))
        negotiation.add(rank, request("mean", operation="average"))
        negotiation.add(rank, request("wide", dtype="float64"))
    assert names(negotiation) == [["a", "b", "c"], ["d"], ["mean"], ["wide"]]


def test_large_tensors_are_exchanged_alone() -> None:
    negotiation = Negotiation(1, 1 << 30)
    for name in "ab":
        negotiation.add(0, request(name, nbytes=2 << 20))
    assert names(negotiation) == [["a"], ["b"]]


def test_a_group_is_ready_as_a_whole() -> None:
    negotiation = Negotiation(2, 1 << 20)
    for rank, given in ((0, "ab"), (1, "a")):
        for name in given:
            negotiation.add(rank, request(name, group="g", group_size=2))
    assert negotiation.take() is None
    negotiation.add(1, request("b", group="g", group_size=2))
    assert names(negotiation) == [["a", "b"]]


def test_what_ranks_say_differently_is_named() -> None:
    negotiation = Negotiation(3, 0)
    for rank, shape in enumerate([(4,), (4,), (2, 2)]):
        negotiation.add(rank, request("w", shape=shape))
    response = negotiation.take()
    assert response is not None
    assert response.error == (
        "allreduce of 'w': rank 0 says shape [4], rank 2 says shape [2, 2]; all members must give the "
        "same [R711]"
    )


def test_rows_may_differ_where_they_are_gathered() -> None:
    negotiation = Negotiation(2, 0)
    for rank in (0, 1):
        negotiation.add(rank, request("g", kind="allgather", shape=(rank + 1, 3)))
    response = negotiation.take()
    assert response is not None
    assert (response.error, response.rows) == ("", ((1, 2),))
    for rank in (0, 1):
        negotiation.add(rank, request("g", kind="allgather", shape=(1, rank + 3)))
    response = negotiation.take()
    assert response is not None
    assert "row shape [3], rank 1 says row shape [4]" in response.error


def test_ranks_that_have_joined_take_part_with_zeros() -> None:
    negotiation = Negotiation(3, 0)
    negotiation.add(1, request("join", kind="join", counts=(("allreduce", 4),)))
    for rank in (0, 2):
        negotiation.add(rank, request("a"))
    response = negotiation.take()
    assert response is not None
    assert (response.kind, response.joined) == ("allreduce", (1,))
    for rank in (0, 2):
        negotiation.add(rank, request("g", kind="allgather"))
    response = negotiation.take()
    assert response is not None
    assert "rank 1 has called join()" in response.error
    for rank in (2, 0):
        negotiation.add(rank, request("join", kind="join", counts=(("allreduce", 7),)))
    response = negotiation.take()
    assert response is not None
    assert (response.last, response.counts) == (0, (("allreduce", 7),))


def test_members_of_a_set_negotiate_among_themselves() -> None:
    negotiation = Negotiation(3, 0, [(0, 2)])
    for rank in (0, 2):
        negotiation.add(rank, request("a", process_set=1))
    response = negotiation.take()
    assert response is not None
    assert negotiation.members_of(response) == (0, 2)
    for rank in range(3):
        negotiation.add(rank, request("new", kind="set", members=(0, 2)))
    response = negotiation.take()
    assert response is not None
    assert response.error == "a process set of ranks [0, 2] exists already: 1 [R716]"


def test_who_is_missing_is_known() -> None:
    negotiation = Negotiation(3, 0)
    negotiation.add(0, request("a"))
    negotiation.add(1, request("b"))
    ((name, _, there, missing), *_) = negotiation.overdue(0)
    assert (name, there, missing) == ("a", (0,), (1, 2))
    assert negotiation.outstanding_of(2) == ["a", "b"]
    assert negotiation.last_of(1) == "b"
