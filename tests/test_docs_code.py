"""Python in the documents works: blocks with prompts are doctests, others run, page by page.

A block that is not run says why in a comment before it: `<!-- not run: the reason -->`.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(path for path in ROOT.glob("docs/**/*.md") if "_build" not in path.parts)]
FENCE = re.compile(r"^(?P<fence>`{3,}|:{3,})(?P<words>.*)$")
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")
LANGUAGES = ("python", "pycon", "py")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its page, first line, language, text, and why it is not run, if it says so."""

    page: Path
    line: int
    language: str
    text: str
    excused: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    before = ""
    for number, line in lines:
        opening = FENCE.match(line)
        if opening is None:
            before = line if line.strip() else before
            continue
        inside = []
        for _, text in lines:
            if text.rstrip() == opening["fence"]:
                break
            inside.append(text)
        language = opening["words"].strip()
        if language in LANGUAGES:
            yield Block(page, number + 1, language, "\n".join(inside) + "\n", bool(NOT_RUN.match(before)))
        before = ""


def pages_with_code() -> list[Path]:
    return [page for page in PAGES if any(not block.excused for block in blocks(page))]


@pytest.mark.parametrize("page", pages_with_code(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_s_python_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__docs__"}
    for block in blocks(page):
        if block.excused:
            continue
        if ">>>" in block.text:
            _run_doctest(block, names)
        else:
            # As many empty lines before it as in the page, so that a traceback names the page's line.
            code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
            exec(code, names)


def _run_doctest(block: Block, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, names, str(block), str(block.page), block.line - 1)
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=told.append, clear_globs=False)
    names.update(test.globs)
    assert runner.failures == 0, "".join(told)


def excused() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.excused]


@pytest.mark.parametrize("block", excused(), ids=str)
def test_python_that_is_not_run_is_python(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("script", sorted(ROOT.glob("docs/**/*.py")), ids=lambda path: path.name)
def test_scripts_in_the_documentation_are_python(script: Path) -> None:
    ast.parse(script.read_text())
