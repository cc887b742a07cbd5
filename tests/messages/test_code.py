"""Codes in the text of messages."""

from __future__ import annotations

import pytest

from ronde.messages import as_error, as_note, lift


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("no such plan [R104]", "R104", "no such plan"),
        ("no code", None, "no code"),
        ("a list[R104] is no code", None, "a list[R104] is no code"),
        ("rank 1 failed: no such plan [R104]; log: FILE", "R104", "rank 1 failed: no such plan; log: FILE"),
        ("Linear runs in parts: it is hooked [R345] [R310]", "R345", "Linear runs in parts: it is hooked"),
        ("some hosts cannot:\n  a is down; up [R101] [R100]", "R101", "some hosts cannot:\n  a is down; up"),
        (
            "some hosts cannot:\n  a is down [R101]\n  b is full [R102] [R100]",
            "R100",
            "some hosts cannot:\n  a is down [R101]\n  b is full [R102]",
        ),
        ("first line [R172]\nTraceback ...\n", "R172", "first line\nTraceback ...\n"),
    ],
)
def test_lift(text: str, code: str | None, words: str) -> None:
    assert lift(text) == (code, words)


def test_a_message_begins_with_its_code() -> None:
    assert as_error("no such plan [R104]") == "error[R104]: no such plan"
    assert as_error("no such plan") == "error: no such plan"
    assert as_note("a clock differs [R113]") == "note[R113]: a clock differs"
    assert as_note("saved") == "saved"
