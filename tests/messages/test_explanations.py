"""Each code of the source has one explanation, and each explanation is of a code of the source."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from ronde.messages.explanations import by_code, parse_topic, topics
from sources import SOURCE, trees

_CODE = re.compile(r" \[(R\d\d\d)\]")


def codes_in(tree: ast.AST) -> Iterator[str]:
    """Yield the codes in strings that are no docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from _CODE.findall(node.value)


def test_each_code_has_an_explanation_and_each_explanation_a_message() -> None:
    used = {code for path, tree in trees().items() for code in codes_in(tree)}
    assert used == by_code(topics()).keys()


def test_each_code_is_explained_once() -> None:
    codes = Counter(each.code for topic in topics() for each in topic.explanations)
    assert [code for code, count in codes.items() if count > 1] == []


def test_codes_ascend_and_topics_do_not_overlap() -> None:
    codes = [each.code for topic in topics() for each in topic.explanations]
    assert codes == sorted(codes)
    assert all(re.fullmatch(r"R[1-9]\d\d", code) for code in codes)


def test_explanations_are_short() -> None:
    for code, each in by_code(topics()).items():
        assert 1 <= len(each.title.split()) <= 12, code
        assert len(each.text.split()) <= 90, code


def test_links_lead_to_pages_of_the_documentation() -> None:
    for code, each in by_code(topics()).items():
        for link in re.findall(r"\]\(([^)]+)\)", each.text):
            assert (SOURCE / "messages" / link.partition("#")[0]).is_file(), code


def test_messages_name_pages_that_exist() -> None:
    named = {
        page for path in SOURCE.rglob("*.py") for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())
    }
    assert [page for page in sorted(named) if not (SOURCE.parents[1] / page).is_file()] == []


def test_files_hold_nothing_but_topics() -> None:
    for path in sorted((SOURCE / "messages").glob("*.md")):
        head = path.read_text().partition("\n## ")[0].strip()
        assert re.fullmatch(r"# .+", head), path


def test_parse() -> None:
    topic = parse_topic("x", "# Some topic\n\n## R101: one\n\nText: of\none.\n\nMore.\n\n## R102: two\n")
    assert (topic.name, topic.title) == ("x", "Some topic")
    one, two = topic.explanations
    assert (one.code, one.title, one.text) == ("R101", "one", "Text: of\none.\n\nMore.")
    assert (two.code, two.title, two.text) == ("R102", "two", "")


def test_the_page_of_messages_has_each_topic_in_order() -> None:
    page = (SOURCE.parents[1] / "docs/reference/messages.md").read_text()
    included = re.findall(r"^```{include} \.\./\.\./src/ronde/messages/(\w+)\.md$", page, re.MULTILINE)
    assert included == [topic.name for topic in topics()]
