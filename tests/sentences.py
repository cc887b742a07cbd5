"""Every sentence that ronde may say, found in its source: what is raised, noted or printed.

A sentence is a string literal with some words in it, no docstring and no help text. An f-string is a pattern:
its constant words, with anything between them.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import re
from collections.abc import Iterator

from sources import SOURCE, trees

__all__ = ["Sentence", "matching", "normal", "sentences"]

# Rooms whose words are no sentences to act upon, and where they are told.
ELSEWHERE = (
    "cli/examples.py",  # command lines
    "testing/",  # for those who write tests
    "bench/workloads/",  # scripts
    "doctor/causes/",  # explanations, which say what to do: docs/reference/doctor.md
    "doctor/checks/",
    "doctor/host_links.py",
    "doctor/explain.py",
    "doctor/preflight.py",
    "bench/table.py",  # what `ronde bench` prints
    "bench/collectives/table.py",
    "bench/memory/table.py",
    "bench/memory/formula.py",
    "bench/memory/activations.py",
    "bench/parallel/report.py",
    "report/chart.py",  # what a page or a terminal shows: docs/guides/seeing-a-run.md
    "report/live.py",
    "report/page.py",
    "report/style.py",
    "plan/alias.py",  # names of other systems: docs/reference/plan.md
    "plan/describe.py",  # what `ronde plan show` prints
    "plan/strategies.py",
    "plan/preset.py",
    "planner/report.py",  # what `ronde plan search` prints: docs/guides/finding-a-plan.md
    "planner/modelled.py",
    "planner/picture.py",
    "verify/clauses/",  # findings: docs/concepts/law.md
    "verify/report.py",
)
_HOLE = "\0"
_FEWEST_WORDS = 5
# At the end of a sentence of which only the beginning is written.
_AND_SO_ON = " ..."
_FEWEST_OF_BEGINNING = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: where it stands, and its text with a hole for every value."""

    place: str
    text: str

    def matches(self, said: str) -> bool:
        """Whether that is an instance of it, or, with dots at its end, of a beginning of it."""
        if _pattern(normal(self.text)).fullmatch(normal(said)):
            return True
        if not said.endswith(_AND_SO_ON):
            return False
        begun = normal(said.removesuffix(_AND_SO_ON))
        return any(pattern.fullmatch(begun) for pattern in _beginnings(normal(self.text)))

    @property
    def words(self) -> str:
        """The sentence with dots for every value."""
        return normal(self.text).replace(_HOLE, "...")

    def __str__(self) -> str:
        return f"{self.place}: {self.words}"


def normal(text: str) -> str:
    """One line without the marks that differ between a page and a terminal."""
    return re.sub(r"^ronde: (error: )?", "", " ".join(text.replace("`", "").split()))


def matching(said: str, among: list[Sentence]) -> list[Sentence]:
    """Sentences that `said` is an instance of; a fifth of its words are theirs at least."""
    own = len([word for word in normal(said).split() if not word.isupper()])
    return [sentence for sentence in among if sentence.matches(said) and 5 * _words(sentence.text) >= own]


def sentences(fewest_words: int = _FEWEST_WORDS) -> list[Sentence]:
    """All sentences of the source with so many words, and whatever is raised or noted as it stands."""
    found: dict[str, Sentence] = {}
    for path, tree in trees().items():
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(ELSEWHERE):
            continue
        for line, text, said in _Finder().find(tree):
            if _words(text) >= (1 if said else fewest_words):
                found.setdefault(normal(text), Sentence(f"{name}:{line}", text))
    return list(found.values())


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split(_HOLE)))


@functools.cache
def _beginnings(text: str) -> list[re.Pattern[str]]:
    """Beginnings of a sentence that could be no other's, up to a mark between clauses or a value."""
    ends = [mark.start() for mark in re.finditer(rf"[,;:.](?= )| (?=\(|{_HOLE})", text)]
    return [_pattern(text[:end]) for end in ends if _words(text[:end]) >= _FEWEST_OF_BEGINNING]


def _words(text: str) -> int:
    """How many words there are; a list of options is none."""
    words = text.replace(_HOLE, " ").split()
    if all(word.startswith("-") for word in words):
        return 0
    return sum(any(letter.isalpha() for letter in word) for word in words)


class _Finder:
    """Walks one module."""

    def find(self, tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
        """(line, text with holes, whether it is told as it stands)."""
        yield from self._visit(tree, said=False)

    def _visit(self, node: ast.AST, *, said: bool) -> Iterator[tuple[int, str, bool]]:
        text = _text(node)
        if text is not None:
            yield getattr(node, "lineno", 0), text, said
            for value in ast.walk(node):
                if isinstance(value, ast.FormattedValue):
                    yield from self._visit(value.value, said=False)
            return
        for child in ast.iter_child_nodes(node):
            if _is_no_sentence(child):
                continue
            yield from self._visit(child, said=_is_said(node) if isinstance(node, ast.Call) else said)


def _text(node: ast.AST) -> str | None:
    """The text of a string expression, None for any other node."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or _HOLE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None and right is None else (left or _HOLE) + (right or _HOLE)
    return None


def _is_no_sentence(node: ast.AST) -> bool:
    """A docstring, a help text, or a table of words."""
    if isinstance(node, ast.Expr) and _text(node.value) is not None:
        return True
    if isinstance(node, ast.keyword) and node.arg in ("help", "metavar"):
        return True
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr == "split"


def _is_said(call: ast.Call) -> bool:
    """Whether a call tells the user: an exception that is not Python's own, a finding, a note."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    ours = name.endswith(("Error", "Lost", "Refusal", "Draw", "Verdict"))
    return name in ("say", "note") or (ours and not hasattr(builtins, name))
