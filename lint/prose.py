"""Lint the prose of docstrings, comments and messages; `make lint` runs it.

Rules, each with its code:

- P1: the first sentence of a docstring begins with a verb or the noun of the object, not with a fragment;
- P2: that sentence has at most 14 words (a span of code counts as one);
- P3: that sentence has no "what", "who", "whose", "whom" or "those";
- P4: the text of an entry of `Args:`, `Attributes:` or `Raises:` begins with a noun, an article or "whether";
- P5: docstrings, comments and messages have none of the words in `AVOIDED`.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "src")
MOST_WORDS = 14
# Relative words, prepositions, pronouns, participles, negations: a sentence that begins so lacks its subject.
FRAGMENTS = frozenset(
    """
    what who whose whom which where when whenever whether why how those these that this it they he she
    of not no so as by for with without in inside into to from over until till after before behind beside
    besides between because but also and or nor neither either if than then thus upon
    on at about among against across
    above below around along up down out off
    is are was were be been has have had does did do can could may might must shall should will would
    made asked given told held kept found taken called known said seen left lost meant used done gone
    only even still yet again always never once twice else more most less least none nothing nobody
    """.split()
)
ENTRY_FRAGMENTS = FRAGMENTS - {"whether", "up", "at", "no", "more", "none", "only"} | {"there"}
RELATIVE = re.compile(r"\b(what|who|whose|whom|those)\b", re.IGNORECASE)
AVOIDED = re.compile(
    r"\b(nought|dear|mend(s|ed|ing)?|(is|are|was|were) none"
    r"|(?<!there )(is|are|was|were) no (?!longer\b|more than\b)"
    r"|comes? home|(is|are) met|goes by|go by|stands? in)\b",
    re.IGNORECASE,
)
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
ENTRY = re.compile(r"^\s*\*{0,2}[\w.`]+(?: \([^)]*\))?: +(?P<text>\S.*)$")
CODE = re.compile(r"``?[^`]+``?")


class Finding(NamedTuple):
    """A place in a file whose prose breaks a rule."""

    line: int
    code: str
    text: str


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring, its spans of code replaced by one word each."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    plain = CODE.sub("CODE", paragraph)
    return re.split(r"(?<=[^.][.:?!])\s+(?=[A-Z`(])", plain)[0]


def of_sentence(sentence: str) -> Iterator[str]:
    """Yield the codes of the rules that the first sentence of a docstring breaks."""
    words = re.findall(r"[\w'/=.<>+*-]*\w[\w'/=.<>+*-]*", sentence)
    if not words:
        return
    if words[0].lower() in FRAGMENTS:
        yield "P1"
    if len(words) > MOST_WORDS:
        yield "P2"
    if RELATIVE.search(sentence):
        yield "P3"


def of_docstring(docstring: str, line: int) -> Iterator[Finding]:
    """Yield the findings in a docstring that begins in this line."""
    sentence = first_sentence(docstring)
    yield from (Finding(line, code, sentence) for code in of_sentence(sentence))
    section = False
    for number, text in enumerate(docstring.split("\n")):
        if SECTION.match(text.strip()):
            section = text.strip()[:-1] not in ("Returns", "Yields")
        elif section and text.strip() and (entry := ENTRY.match(text)):
            first = re.match(r"[A-Za-z']+", CODE.sub("CODE", entry["text"]))
            if first and first[0].lower() in ENTRY_FRAGMENTS:
                yield Finding(line + number, "P4", text.strip())
        elif not text.strip():
            section = False


def docstrings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each docstring and its first line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            match node.body[0]:
                case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                    yield text, line
                case _:
                    pass


def findings(source: str) -> list[Finding]:
    """Return the findings in the source of a module, in the order of their lines."""
    tree = ast.parse(source)
    found: list[Finding] = []
    for docstring, line in docstrings(tree):
        found += of_docstring(docstring, line)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            found += avoided(node.value, node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found += avoided(token.string, token.start[0])
    return sorted(found)


def avoided(text: str, line: int) -> Iterator[Finding]:
    """Yield a finding for each avoided word of a text."""
    plain = CODE.sub("CODE", text)
    yield from (Finding(line, "P5", match[0].strip()) for match in AVOIDED.finditer(plain))


def main() -> int:
    """Print all findings, and return whether there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders; all of the project by default")
    given = parser.parse_args().paths or [ROOT / folder for folder in FOLDERS]
    files = [path for each in given for path in (sorted(each.rglob("*.py")) if each.is_dir() else [each])]
    found = [(path, place) for path in files for place in findings(path.read_text())]
    for path, place in found:
        print(f"{path.resolve().relative_to(ROOT)}:{place.line}: {place.code} {place.text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
