"""Containers tell when they are asked how much is in them, wherever they are."""

from __future__ import annotations

import collections
from typing import Any

from ronde.boundary.noted_lengths import containers, noted_lengths


class Memory:
    def __init__(self) -> None:
        self.items: list[int] = [1, 2]

    def __len__(self) -> int:
        return len(self.items)


def _decisions(held: Any, ask: Any) -> list[str]:
    decisions: list[str] = []
    with noted_lengths([globals()], containers([held]), decisions):
        ask()
    assert "len" not in globals()
    len(held)
    return decisions


def test_a_length_that_is_asked_for_is_noted() -> None:
    bank, memory, window = [[1], 2], Memory(), collections.deque([1])
    assert _decisions(bank, lambda: len(bank))
    assert _decisions(bank, lambda: len(bank[0]))
    assert _decisions(memory, lambda: len(memory))
    assert _decisions({"window": window}, lambda: len(window))


def test_other_lengths_and_what_is_put_in_are_not() -> None:
    bank: list[Any] = [[1], 2]
    assert not _decisions(bank, lambda: len([*bank]))
    assert not _decisions(bank, lambda: bank.append(3))
    assert not _decisions(bank, lambda: sum(1 for _ in bank))


def test_what_leads_back_to_itself_ends() -> None:
    bank: list[Any] = [1]
    bank.append(bank)
    assert containers([bank]) == [bank]
