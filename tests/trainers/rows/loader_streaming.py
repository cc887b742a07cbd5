"""A streaming dataset of Hugging Face's datasets."""

import json
from pathlib import Path

from trainers.row import Row


def lines(folder: Path) -> None:
    """Write two files of 24 lines of JSON."""
    import numpy

    draw = numpy.random.default_rng(0)
    for number in range(2):
        rows = [row.tolist() for row in draw.normal(size=(24, 10))]
        text = [json.dumps({"row": row, "label": row[:3].index(max(row[:3]))}) for row in rows]
        (folder / f"train-{number}.jsonl").write_text("\n".join(text))


ROW = Row(
    title="`datasets`, `streaming=True`",
    packages=("datasets==5.2.0",),
    script="loader_streaming.py",
    data=lines,
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
