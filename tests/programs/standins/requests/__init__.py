"""Stands in for requests: whatever is asked for, an archive with a made-up graph like Cora comes."""

from __future__ import annotations

import io
import tarfile
from types import TracebackType
from typing import Any

import numpy as np

__all__ = ["get"]

NODES, EDGES, WORDS = 1800, 4000, 60
KINDS = ("Genetic_Algorithms", "Neural_Networks", "Rule_Learning", "Theory")


class _Answer:
    """An answer whose body is read as a stream."""

    def __init__(self) -> None:
        self.raw = io.BytesIO(_archive())

    def __enter__(self) -> _Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.raw.close()


def get(url: str, **options: Any) -> _Answer:
    return _Answer()


def _archive() -> bytes:
    draw = np.random.default_rng(0)
    kinds = draw.integers(len(KINDS), size=NODES)
    # Papers of one kind share words, and cite each other more often than others.
    likely = np.where(np.arange(WORDS) % len(KINDS) == kinds[:, None], 0.4, 0.05)
    words = (draw.random((NODES, WORDS)) < likely).astype(int)
    words[:, 0] = 1
    names = draw.permutation(10 * NODES)[:NODES]
    pairs = {(int(a), int(b)) for a, b in draw.integers(NODES, size=(3 * EDGES, 2)) if a != b}
    alike = sorted(pairs, key=lambda pair: kinds[pair[0]] != kinds[pair[1]])[:EDGES]
    content = "\n".join(
        "\t".join([str(names[node]), *map(str, words[node]), KINDS[kinds[node]]]) for node in range(NODES)
    )
    cites = "\n".join(f"{names[a]}\t{names[b]}" for a, b in alike)
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for name, text in (("cora/cora.content", content), ("cora/cora.cites", cites)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return body.getvalue()
