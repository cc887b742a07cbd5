"""The documents speak of what there is: links lead somewhere, the index of decisions is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ronde.plan import Mesh
from ronde.plan.key import keys_of

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
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
    unsaid = [
        key.name
        for key in keys_of(Mesh)
        if (ROOT / f"docs/{key.name}.md").exists()
        and not (f"(docs/{key.name}.md)" in readme and f"({key.name}.md)" in front)
    ]
    assert unsaid == []


def test_the_readme_names_every_room() -> None:
    readme = (ROOT / "README.md").read_text()
    rooms = [path.parent for path in (ROOT / "src/ronde").glob("*/__init__.py")]
    missing = [room.name for room in rooms if f"| `{room.name}/` |" not in readme]
    assert missing == []
