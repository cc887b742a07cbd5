"""The table of shares as Markdown, between two marks of docs/concepts/meshes.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cut_shares.measure import MESHES, Shares
from cut_shares.models import MODELS

__all__ = ["PAGE", "shown", "write"]

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "meshes.md"
_BEGIN, _END = "<!-- by `make shares` -->\n", "<!-- end of what `make shares` writes -->"


def write(found: Mapping[tuple[str, str], Shares]) -> None:
    lines = [
        "| model | " + " | ".join(f"`{mesh}`" for mesh in MESHES) + " |",
        "|---" * (len(MESHES) + 1) + "|",
    ]
    for model in MODELS:
        lines.append(f"| {model} | " + " | ".join(_cell(found[model, mesh]) for mesh in MESHES) + " |")
    reasons = {each.why for each in found.values() if each.why}
    by_reason = [
        (why, [f"{model}, `{mesh}`" for (model, mesh), each in found.items() if each.why == why])
        for why in reasons
    ]
    lines += ["", "What was said of them:", ""]
    lines += [f"- {'; '.join(cells)}: {why}" for why, cells in sorted(by_reason)]
    before, rest = PAGE.read_text().split(_BEGIN)
    PAGE.write_text(before + _BEGIN + "\n".join(lines) + "\n" + _END + rest.split(_END)[1])


def _cell(share: Shares) -> str:
    if not share.products and not share.parameters:
        return "none"
    return f"{share.products:.0%} / {share.parameters:.0%}"


def shown() -> dict[tuple[str, str], str]:
    """By model and mesh, the cells that the page has."""
    lines = PAGE.read_text().split(_BEGIN)[1].split(_END)[0].splitlines()
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {(row[0], mesh): cell for row in rows[2:] for mesh, cell in zip(MESHES, row[1:], strict=True)}
