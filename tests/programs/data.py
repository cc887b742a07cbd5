"""Made-up data in the files that programs read: always the same, and small."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

__all__ = ["pictures", "ratings", "series", "text", "tokens"]

_SENTENCES = 2000
_USERS, _ITEMS, _EACH, _NEGATIVES = 24, 120, 8, 99


def text(file: Path) -> None:
    """Sentences of a small grammar."""
    draw = random.Random(0)
    subjects = "the sailor/a grey cat/my old friend/nobody/the moon over Delft/every second child".split("/")
    verbs = "sees/forgets/paints/follows/has lost/would rather keep/sings of".split("/")
    objects = "the harbour/two red kites/a letter, unread/the way home/its own shadow/nine bells".split("/")
    ends = ".;!;, and laughs.;, but not today.;? Perhaps.".split(";")
    parts = (subjects, verbs, objects, ends)
    sentences: list[str] = []
    for _ in range(_SENTENCES):
        subject, verb, thing, end = (draw.choice(part) for part in parts)
        sentences.append(f"{subject.capitalize()} {verb} {thing}{end}")
    file.write_text("\n".join(sentences) + "\n")


def tokens(folder: Path) -> None:
    """`train.bin` and `val.bin` with 20,000 tokens of 16 bits each, below 64."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name in ("train.bin", "val.bin"):
        draw.integers(64, size=20_000).astype(np.uint16).tofile(folder / name)


def series(file: Path) -> None:
    """A CSV with hourly dates and the seven columns of ETTh1, as long as its splits are."""
    hours = np.arange(20 * 30 * 24)
    dates = np.datetime64("2016-07-01T00:00:00") + hours.astype("timedelta64[h]")
    draw = np.random.default_rng(0)
    columns = [np.sin(hours / (4 + 3 * each)) + 0.1 * draw.normal(size=len(hours)) for each in range(7)]
    lines = ["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"]
    lines += [
        ",".join([str(date).replace("T", " "), *(f"{value:.3f}" for value in values)])
        for date, *values in zip(dates, *columns, strict=True)
    ]
    file.write_text("\n".join(lines) + "\n")


def pictures(folder: Path, *, number: int = 16, side: int = 64, ending: str = "png") -> None:
    """Pictures in colours with a bright box in each, by numbers."""
    from PIL import Image

    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for index in range(number):
        picture = draw.integers(0, 120, (side, side, 3)).astype(np.uint8)
        top, left = draw.integers(side // 2, size=2)
        picture[top : top + side // 3, left : left + side // 3] += 120
        Image.fromarray(picture).save(folder / f"{index}.{ending}")


def ratings(folder: Path) -> None:
    """`ml-1m.train.rating`, `ml-1m.test.negative`: users, items, and items that a user has not seen."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    train: list[str] = []
    negative: list[str] = []
    for user in range(_USERS):
        held_out, *seen = draw.permutation(_ITEMS)[: _EACH + 1]
        train += [f"{user}\t{item}\t5\t0" for item in seen]
        unseen = np.setdiff1d(np.arange(_ITEMS), [held_out, *seen])[:_NEGATIVES]
        negative.append("\t".join([f"({user},{held_out})", *map(str, unseen)]))
    train.append(f"{_USERS - 1}\t{_ITEMS - 1}\t5\t0")
    (folder / "ml-1m.train.rating").write_text("\n".join(train) + "\n")
    (folder / "ml-1m.test.negative").write_text("\n".join(negative) + "\n")
