"""Notes for the user, printed after the run: each once, in order."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Notes"]


class Notes:
    """A list of sentences without repetitions."""

    def __init__(self) -> None:
        self._sentences: dict[str, None] = {}

    def say(self, sentence: str) -> None:
        self._sentences.setdefault(sentence)

    def say_instead(self, before: str, sentence: str) -> None:
        """Replace an earlier sentence by a more precise one."""
        self._sentences = {sentence if each == before else each: None for each in self._sentences}

    def __iter__(self) -> Iterator[str]:
        return iter(self._sentences)

    def __bool__(self) -> bool:
        return bool(self._sentences)
