"""What stands in for packages and data that a program of public code asks for.

A package is a folder of `standins`, copied beside the program, where Python looks first. `gym` is the one of
old, whose `reset` gives the observation and whose `step` gives four things; `gym26` and `gymnasium` give an
information too, and five. `digits:N` makes torchvision's data sets N images long. `text:FILE` is a text of
some length in words of its own, `folder:NAME` an empty folder that a clone would have.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

__all__ = ["known", "provide"]

PACKAGES = Path(__file__).with_name("standins")
# The name under which a package is imported, and what is different in it.
_VARIANTS = {"gym26": ("gym", "gym", "NEW = True\n"), "gymnasium": ("gym", "gymnasium", "NEW = True\n")}
_SENTENCES = 2000


def known(standin: str) -> bool:
    kind, _, value = standin.partition(":")
    return (
        (kind in ("text", "digits", "folder") and bool(value))
        or kind in _VARIANTS
        or (PACKAGES / kind).is_dir()
    )


def provide(standin: str, folder: Path) -> None:
    """Put it into the folder in which the program is run."""
    kind, _, value = standin.partition(":")
    if kind == "text":
        (folder / value).parent.mkdir(parents=True, exist_ok=True)
        (folder / value).write_text(_text())
    elif kind == "folder":
        (folder / value).mkdir(parents=True)
    elif kind == "digits":
        shutil.copytree(PACKAGES / "torchvision", folder / "torchvision")
        (folder / "torchvision" / "size.py").write_text(f"IMAGES = {int(value)}\n")
    elif kind in _VARIANTS:
        package, name, api = _VARIANTS[kind]
        shutil.copytree(PACKAGES / package, folder / name)
        (folder / name / "api.py").write_text(api)
    else:
        shutil.copytree(PACKAGES / kind, folder / kind)


def _text() -> str:
    """Sentences of a small grammar, always the same."""
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
    return "\n".join(sentences) + "\n"
