"""The journal: recorded, written, read and taken in order."""

from __future__ import annotations

import pytest

from ronde.checkpoint.journal import Journal, JournalError, Mismatch, read_entries


def journal() -> Journal:
    made = Journal()
    made.record("call", "Linear", b"outline")
    made.record("read", "item", 0.5).random = "state"
    return made


def test_what_is_written_is_read() -> None:
    recorded = journal()
    content = recorded.fresh()
    recorded.record("step", "SGD", (0, b""))
    content += recorded.fresh()
    assert recorded.fresh() == b""
    entries = read_entries(content)
    assert [(each.kind, each.name, each.payload, each.random) for each in entries] == [
        ("call", "Linear", b"outline", None),
        ("read", "item", 0.5, "state"),
        ("step", "SGD", (0, b""), None),
    ]


def test_entries_are_taken_in_order() -> None:
    replayed = Journal(read_entries(journal().fresh()))
    assert replayed.replaying
    assert replayed.take("call", "Linear").payload == b"outline"
    with pytest.raises(
        Mismatch, match="at entry 2 of 2 it reaches a step of SGD, and reached a reading by item before"
    ):
        replayed.take("step", "SGD")
    assert replayed.take("read", "item").payload == 0.5
    assert replayed.at_end
    with pytest.raises(Mismatch, match="it reaches a backward after the end of its journal"):
        replayed.take("backward", "backward")
    replayed.begin_recording()
    replayed.record("read", "item", 1)
    assert len(read_entries(replayed.fresh())) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "head"])
def test_damage_is_found(damage: str) -> None:
    content = bytearray(journal().fresh())
    if damage == "cut":
        del content[-1]
    elif damage == "head":
        del content[7:]
    else:
        content[-3] ^= 1
    with pytest.raises(JournalError):
        read_entries(bytes(content))
