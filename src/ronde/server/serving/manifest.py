"""The manifest of a model's version: a JSON file, written after the version's parts.

published/
    version-7.json             the manifest, written last
    dense-7.safetensors        parameters and buffers of the model
    delta-7-rank-0.safetensors rows changed since version 6, and ids of removed rows
    whole-7-rank-0.safetensors all rows, in some versions, so that older ones can be removed
    program-1.pt2              the model's computation, the same for all versions
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ronde.errors import UsageError
from ronde.server.serving.durable import DamagedFile, check_digest, replace
from ronde.server.table.frozen import FrozenLayout
from ronde.server.table.initial import Initial, Normal, Uniform, Zeros

__all__ = ["FOLDER", "FORMAT", "TableEntry", "VersionManifest", "path_of", "versions_in"]

FORMAT = 1
#: Name of the folder in a run's directory.
FOLDER = "published"

_NAME = re.compile(r"version-(\d{1,18})\.json")
_LAWS: dict[str, Any] = {"Zeros": Zeros, "Uniform": Uniform, "Normal": Normal}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableEntry:
    """A table's configuration, without its rows.

    Attributes:
        dim: floats of a row.
        stored: "float32", "float64" or "int8".
        initial: name ("law") and arguments of the rule of first values.
        seed: seed of first values.
    """

    dim: int
    stored: str
    initial: Mapping[str, Any]
    seed: int

    @classmethod
    def of(cls, dim: int, stored: str, initial: Initial, seed: int) -> TableEntry:
        law = {"law": type(initial).__name__, **dataclasses.asdict(initial)}
        return cls(dim=dim, stored=stored, initial=law, seed=seed)

    @property
    def shape(self) -> FrozenLayout:
        """The shape of the served rows.

        Raises:
            DamagedFile: the manifest has invalid values.
        """
        law = dict(self.initial)
        kind = _LAWS.get(law.pop("law", ""))
        if kind is None or self.stored not in ("float32", "float64", "int8") or self.dim < 1:
            raise DamagedFile(f"a manifest names a table of {self}, which ronde does not write [R741]")
        return FrozenLayout(dim=self.dim, stored=self.stored, initial=kind(**law), seed=self.seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionManifest:
    """The manifest of one version of a model.

    Attributes:
        version: number of the version, from 1.
        step: number of optimizer steps that the script has made.
        time: end of the last of them; seconds since 1970.
        tables: entries by name.
        files: SHA-256 of each file, by name.
        dense: name of the file with parameters and buffers.
        program: name of the file with the exported program; "" if the model has none.
        no_program: error of the export; "" if it succeeded.
        follows: the version to which `delta` applies; None without a delta.
        delta, whole: names of files with rows, one per rank that holds rows; `whole` is empty in most
        versions.
    """

    version: int
    step: int
    time: float
    tables: Mapping[str, TableEntry]
    files: Mapping[str, str]
    dense: str
    program: str = ""
    no_program: str = ""
    follows: int | None = None
    delta: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Publish the version: write its manifest after its files are durable."""
        fields = {"format": FORMAT, **dataclasses.asdict(self)}
        replace(path_of(folder, self.version), json.dumps(fields, indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> VersionManifest:
        """Read a manifest that `write` wrote.

        Raises:
            DamagedFile: the file is missing or damaged.
        """
        try:
            fields = json.loads(path.read_bytes())
            form = fields.pop("format")
        except OSError as error:
            raise DamagedFile(f"{path} cannot be read: {error.strerror} [R741]") from None
        except (ValueError, AttributeError, KeyError, TypeError):
            raise DamagedFile(f"{path} is damaged: it is not a manifest [R741]") from None
        if form != FORMAT:
            raise UsageError(
                f"{path} has the form {form} of another ronde; this one reads form {FORMAT} [R742]"
            )
        try:
            tables = {name: TableEntry(**entry) for name, entry in fields.pop("tables").items()}
            lists = {name: tuple(fields.pop(name)) for name in ("delta", "whole")}
            made = cls(tables=tables, **lists, **fields)
        except (AttributeError, KeyError, TypeError):
            raise DamagedFile(f"{path} is damaged: it is not a manifest [R741]") from None
        if path_of(path.parent, made.version) != path:
            raise DamagedFile(f"{path} is damaged: it is not a manifest [R741]")
        if any(Path(name).name != name for name in made.files):
            raise DamagedFile(f"{path} names files outside of its folder [R741]")
        return made

    def check(self, folder: Path, *names: str) -> None:
        """Check the SHA-256 of these files.

        Raises:
            DamagedFile: a file is missing or damaged.
        """
        for name in names:
            if name not in self.files:
                raise DamagedFile(f"the manifest of version {self.version} has no checksum of {name} [R741]")
            check_digest(folder / name, self.files[name])


def path_of(folder: Path, version: int) -> Path:
    """Return the path of a version's manifest."""
    return folder / f"version-{version}.json"


def versions_in(folder: Path) -> list[int]:
    """Return all versions, rising; an empty list if the folder is missing."""
    try:
        names = [match[1] for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    except FileNotFoundError:
        return []
    return sorted(map(int, names))
