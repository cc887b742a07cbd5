"""The programs of public code that are run beside plain Python, and whether a checkout holds them."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import shlex
import subprocess
from pathlib import Path

__all__ = ["LIST", "Program", "read"]

LIST = Path(__file__).with_name("list.tsv")


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """One line of the list.

    Attributes:
        repository: owner and name.
        path: the file in it that is run.
        commit: at which it has these contents.
        sha256: of these contents.
        field: what it is about.
        arguments: as in a shell. `-c CODE` runs this code in its folder in its place: a call that trains, or
            what must be so before the program runs here (no CUDA, a name that newer packages lack).
        steps: optimizer steps after which it is ended.
        standins: what stands in for packages and data (see standins.py).
        beside: other files of the repository that it imports or reads, each with its sha256: `path=sha256`.
    """

    repository: str
    path: str
    commit: str
    sha256: str
    field: str
    arguments: str
    steps: int
    standins: tuple[str, ...]
    beside: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.repository} {self.path}"

    @property
    def entry(self) -> str:
        """A digest of the whole line: another one where anything of it is changed."""
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).hexdigest()[:8]

    @property
    def words(self) -> list[str]:
        return shlex.split(self.arguments)

    def files(self) -> dict[str, str]:
        """The sha256 of each file that it needs, by path."""
        return {self.path: self.sha256, **dict(each.split("=") for each in self.beside)}

    def missing(self, checkouts: Path) -> str:
        """Why it cannot be run from this folder of checkouts, which holds `owner/name`; "" where it can."""
        for path, sha256 in self.files().items():
            contents = self.contents(checkouts, path)
            if contents is None:
                return f"no {self.repository}/{path}, commit {self.commit}"
            if hashlib.sha256(contents).hexdigest() != sha256:
                return f"{self.repository}/{path} is not that of commit {self.commit}"
        return ""

    def contents(self, checkouts: Path, path: str) -> bytes | None:
        """A file at the commit, as git knows it or as it lies there."""
        folder = checkouts / self.repository
        if (folder / ".git").exists():
            shown = subprocess.run(
                ["git", "-C", str(folder), "show", f"{self.commit}:{path}"], capture_output=True
            )
            if not shown.returncode:
                return shown.stdout
        file = folder / path
        return file.read_bytes() if file.is_file() else None


def read(path: Path = LIST) -> list[Program]:
    """The programs, in the list's order."""
    with path.open(newline="") as stream:
        lines = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        Program(
            **{
                **line,
                "steps": int(line["steps"]),
                "standins": tuple(line["standins"].split()),
                "beside": tuple(line["beside"].split()),
            }
        )
        for line in lines
    ]
