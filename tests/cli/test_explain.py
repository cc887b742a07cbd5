"""`ronde explain` as a user types it."""

from __future__ import annotations

import pytest

from ronde.cli.explain import explain
from ronde.errors import UsageError
from ronde.messages import lift
from ronde.messages.explanations import by_code, topics


@pytest.mark.parametrize("word", ["R101", "r101", "[R101]"])
def test_a_code(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    explain([word])
    head, _, text = capsys.readouterr().out.partition("\n\n")
    assert head == f"R101: {by_code(topics())['R101'].title}"
    words, _, link = by_code(topics())["R101"].text.rpartition("See ")
    assert text.split() == [*words.split(), "See", "docs/guides/several-hosts.md#by-ssh."]
    assert "(../../../docs/guides/several-hosts.md#by-ssh)" in link


def test_several_codes(capsys: pytest.CaptureFixture[str]) -> None:
    explain(["R101", "R102"])
    printed = capsys.readouterr().out
    assert printed.index("R101: ") < printed.index("R102: ")


def test_without_a_code_topics_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    explain(None)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [topic.name for topic in topics()]
    assert lines[0].split()[1:4] == ["R100", "to", topics()[0].explanations[-1].code]


def test_a_topic_lists_its_codes(capsys: pytest.CaptureFixture[str]) -> None:
    explain(["launching"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"R100  {by_code(topics())['R100'].title}"


def test_an_unknown_code_is_answered_by_near_ones() -> None:
    with pytest.raises(UsageError, match="R999 is not a code") as caught:
        explain(["R999"])
    assert lift(str(caught.value))[0] == "R601"
    with pytest.raises(UsageError, match=r"did you mean R101, "):
        explain(["R101a"])
    with pytest.raises(UsageError, match=r"did you mean launching\?"):
        explain(["lauching"])
