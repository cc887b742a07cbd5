"""What stands in for packages and data that a program of public code asks for.

A package is a folder of `standins`, copied beside the program, where Python looks first. `gym` is the one of
old, whose `reset` gives the observation and whose `step` gives four things; `gym26` and `gymnasium` give an
information too, and five. `digits:N` makes torchvision's data sets N images long. `folder:NAME` is an empty
folder that a clone would have. `text:FILE`, `series:FILE`, `tokens:FOLDER`, `pictures:FOLDER` and
`ratings:FOLDER` are made-up data (see data.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from programs import data

__all__ = ["known", "provide"]

PACKAGES = Path(__file__).with_name("standins")
# The name under which a package is imported, and what is different in it.
_VARIANTS = {"gym26": ("gym", "gym", "NEW = True\n"), "gymnasium": ("gym", "gymnasium", "NEW = True\n")}
_MADE_UP: Mapping[str, Callable[[Path], None]] = {
    "text": data.text,
    "series": data.series,
    "tokens": data.tokens,
    "pictures": data.pictures,
    "ratings": data.ratings,
    "folder": lambda folder: folder.mkdir(),
}


def known(standin: str) -> bool:
    kind, _, value = standin.partition(":")
    if value:
        return kind == "digits" or kind in _MADE_UP
    return kind in _VARIANTS or (PACKAGES / kind).is_dir()


def provide(standin: str, folder: Path) -> None:
    """Put it into the folder in which the program is run."""
    kind, _, value = standin.partition(":")
    if kind in _MADE_UP:
        (folder / value).parent.mkdir(parents=True, exist_ok=True)
        _MADE_UP[kind](folder / value)
    elif kind == "digits":
        shutil.copytree(PACKAGES / "torchvision", folder / "torchvision")
        (folder / "torchvision" / "size.py").write_text(f"IMAGES = {int(value)}\n")
    elif kind in _VARIANTS:
        package, name, api = _VARIANTS[kind]
        shutil.copytree(PACKAGES / package, folder / name)
        (folder / name / "api.py").write_text(api)
    else:
        shutil.copytree(PACKAGES / kind, folder / kind)
