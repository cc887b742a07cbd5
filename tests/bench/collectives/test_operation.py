from __future__ import annotations

import pytest

from ronde.bench.collectives.cases import Case, cases, parse_size, show_size
from ronde.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4KB", 4000), ("4 KiB", 4096), ("1.5mb", 1_500_000), ("102MB", 102_000_000), ("7B", 7)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "4", "KB", "4 pounds", "-4KB", "0KB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size; write a number and a unit among B, KB, MB"):
        parse_size(text)


@pytest.mark.parametrize("shown", ["7 B", "4 KB", "4 KiB", "1.5 MB", "102 MB", "3 GiB"])
def test_sizes_are_shown_as_they_were_written(shown: str) -> None:
    assert show_size(parse_size(shown)) == shown


def test_every_operation_at_every_size_and_a_barrier_once() -> None:
    assert [case.title for case in cases(["broadcast", "barrier", "broadcast"], [4000, 4096, 4000])] == [
        "broadcast of 4 KB",
        "broadcast of 4 KiB",
        "barrier",
    ]


def test_tensors_can_be_cut_for_every_rank() -> None:
    assert Case(operation="all-gather", nbytes=4000).elements(2) == 1000
    assert Case(operation="all-gather", nbytes=4000).elements(3) == 1002
    assert Case(operation="all-gather", nbytes=1).elements(8) == 8
