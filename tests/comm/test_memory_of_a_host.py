"""Memory that ranks of a host share, by their number."""

from __future__ import annotations

import pytest

from ronde.comm.shared_mailbox import Mailbox
from ronde.comm.shared_memory import chunk_bytes


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32, 64, 128, 256])
def test_it_does_not_grow_with_the_square_of_ranks(ranks: int) -> None:
    together = ranks * (2 * chunk_bytes(ranks) + Mailbox.nbytes(ranks))
    assert together <= (64 << 20) + ranks * (192 << 10)


def test_few_ranks_have_chunks_that_fill_the_cache() -> None:
    assert [chunk_bytes(ranks) >> 20 for ranks in (1, 2, 4, 8)] == [1, 1, 2, 4]
