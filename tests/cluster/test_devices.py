"""CUDA devices, counted without torch."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from ronde.cluster.devices import cuda_devices, cuda_names, torch_has_cuda


def _host(root: Path, *names: str) -> Path:
    (root / "dev").mkdir()
    for name in names:
        (root / "dev" / name).touch()
    return root


NODES = ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null")


@pytest.mark.parametrize(
    ("nodes", "visible", "devices"),
    [
        ((), None, ()),
        ((), "0,1", ()),
        (NODES, None, ("0", "1", "2")),
        (NODES, "2,0", ("2", "0")),
        (NODES, " GPU-8932f937 , 1", ("GPU-8932f937", "1")),
        (NODES, "", ()),
        (NODES, "-1", ()),
        (NODES, "1,-1,0", ("1",)),
    ],
)
def test_devices(
    tmp_path: Path, nodes: tuple[str, ...], visible: str | None, devices: tuple[str, ...]
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert cuda_devices(environment, _host(tmp_path, *nodes)) == devices


def test_names_are_the_drivers(tmp_path: Path) -> None:
    """Of the devices that may be used; without the driver's program there are none, and no error."""
    host = _host(tmp_path, *NODES)
    environment = {"CUDA_VISIBLE_DEVICES": "1,0", "PATH": str(tmp_path)}
    assert cuda_names(environment, host) == ()
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\nfor word; do echo "Device $word"; done\n')
    program.chmod(0o755)
    assert cuda_names(environment, host)[0] == "Device --id=1,0"
    assert cuda_names({**environment, "CUDA_VISIBLE_DEVICES": ""}, host) == ()


@pytest.mark.parametrize(
    ("line", "built"),
    [
        ("cuda: Optional[str] = None", False),
        ("cuda: Optional[str] = '12.8'", True),
        ('cuda = "12.8"', True),
        ("hip: Optional[str] = '6.4'", False),
    ],
)
def test_torch_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, built: bool) -> None:
    (tmp_path / "version.py").write_text(f"debug = False\n{line}\n")
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    assert torch_has_cuda() is built


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert torch_has_cuda() is False
