"""The documents speak of what there is: links lead somewhere, the index of decisions is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ronde.plan import Mesh
from ronde.plan.key import Integer, keys_of

ROOT = Path(__file__).parents[1]
PAGES = (path for path in ROOT.glob("docs/**/*.md") if "_build" not in path.parts)
# Pages of messages, which a generated one replaces, still have links to the places of before.
DOCUMENTS = [*ROOT.glob("*.md"), *(path for path in PAGES if not path.name.startswith("messages"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    targets = [link for link in LINK.findall(document.read_text()) if not link.startswith(("http", "#"))]
    missing = [link for link in targets if not (document.parent / link.partition("#")[0]).exists()]
    assert missing == []


STATUS = re.compile(r"^Date: \d{4}-\d\d-\d\d\. Status: (.+?)\.(?: |$)", re.MULTILINE)


@pytest.mark.parametrize("folder", ["docs/adr", "docs/adr/archive"])
def test_the_index_of_decisions_has_each_with_its_title_and_status(folder: str) -> None:
    lines = (ROOT / folder / "README.md").read_text().splitlines()
    records = sorted((ROOT / folder).glob("[0-9]*.md"))
    rows = [line for line in lines if re.match(r"\| \[\d", line)]
    assert sorted(link for row in rows for link in LINK.findall(row)) == [path.name for path in records]
    for path in records:
        text, number = path.read_text(), path.name[:4]
        title, status = text.splitlines()[0], STATUS.search(text)
        assert title.startswith(f"# {int(number)}. ")
        assert status is not None
        assert f"| [{number}]({path.name}) | {title.partition('. ')[2]} | {status[1]} |" in rows


def test_records_in_force_are_accepted_and_the_archive_names_them() -> None:
    in_force = {path.name[:4]: path.read_text() for path in (ROOT / "docs/adr").glob("[0-9]*.md")}
    assert [number for number, text in in_force.items() if "Status: accepted" not in text] == []
    for path in (ROOT / "docs/adr/archive").glob("[0-9]*.md"):
        found = re.search(r"Status: (?:merged into|superseded by) (\d{4})\.", path.read_text())
        assert found is not None, path.name
        assert found[1] in in_force


def test_the_front_page_of_the_documents_claims_what_the_readme_does() -> None:
    readme, front = (ROOT / "README.md").read_text(), (ROOT / "docs/index.md").read_text()
    devices = re.compile(r"\b(\w+) CUDA device\b(?= has been tried|, not on several)")
    assert devices.findall(readme.lower().replace("cuda", "CUDA")) == devices.findall(front) == ["one"]


def test_each_degree_of_a_mesh_has_its_section_and_its_place_in_the_readme() -> None:
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs/reference/cut-models.md").read_text()
    degrees = [key.name for key in keys_of(Mesh) if isinstance(key.kind, Integer) and key.name != "data"]
    assert len(degrees) > 3
    assert [name for name in degrees if f"\n## {name}\n" not in page or f"`{name}=N`" not in readme] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1000


def test_the_documentation_is_short() -> None:
    pages = [page for page in DOCUMENTS if "docs" in page.parts and "archive" not in page.parts]
    assert sum(len(page.read_text().split()) for page in pages) <= 60_000


def test_the_map_of_the_source_names_every_room() -> None:
    page = (ROOT / "docs/development/rooms.md").read_text()
    rooms = [path.parent for path in (ROOT / "src/ronde").glob("*/__init__.py")]
    assert [room.name for room in rooms if f"| `{room.name}/` |" not in page] == []
