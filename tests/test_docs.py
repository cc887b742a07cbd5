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


def test_the_index_of_decisions_names_each_once() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    records = sorted(path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md"))
    assert sorted(LINK.findall(index)) == records
    for name in records:
        title = (ROOT / "docs/adr" / name).read_text().splitlines()[0]
        number, decision = name[:4], title.partition(". ")[2]
        assert title.startswith(f"# {int(number)}. ")
        assert f"| [{number}]({name}) | {decision} |" in index


def test_the_front_page_of_the_documents_claims_what_the_readme_does() -> None:
    readme, front = (ROOT / "README.md").read_text(), (ROOT / "docs/index.md").read_text()
    devices = re.compile(r"\b(\w+) CUDA device\b(?= has been tried|, not on several)")
    assert devices.findall(readme.lower().replace("cuda", "CUDA")) == devices.findall(front) == ["one"]


def test_each_degree_of_a_mesh_has_its_section_and_its_place_in_the_readme() -> None:
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs/reference/cut-models.md").read_text()
    degrees = [key.name for key in keys_of(Mesh) if isinstance(key.kind, Integer) and key.name != "data"]
    assert len(degrees) > 3
    assert [name for name in degrees if f"\n({name})=\n" not in page or f"`{name}=N`" not in readme] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1000


def test_the_map_of_the_source_names_every_room() -> None:
    page = (ROOT / "docs/development/rooms.md").read_text()
    rooms = [path.parent for path in (ROOT / "src/ronde").glob("*/__init__.py")]
    assert [room.name for room in rooms if f"| `{room.name}/` |" not in page] == []
