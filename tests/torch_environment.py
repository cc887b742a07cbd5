"""Make an environment with another torch on top of this one: `python torch_environment.py 2.14.1 FOLDER`.

All packages but torch are those of the interpreter that runs this, found through a .pth file. A torch built
for CUDA asks for 4 GB of NVIDIA's libraries when it is loaded, and calls none of them on a CPU. So the three
that its start-up does call are installed, each other name is a link to a library that torch brings, and
functions are looked up when they are first called. Such an environment is for tests on CPU alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

# `site` runs the lines of a .pth file; by `addsitedir` also those of the shared folder (editable installs).
_SHARED = "import site; site.addsitedir({!r})\n"
_FIRST_CALL = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n"
_MISSING = re.compile(r"(lib[\w.]+\.so[.\d]*): cannot open shared object file")


def make(version: str, folder: Path) -> None:
    """Install torch `version` into a new environment in `folder`."""
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-qq"]
    _run(*pip, "--no-deps", f"torch=={version}")
    shared = _SHARED.format(sysconfig.get_path("purelib"))
    if (site / "torch" / "lib" / "libtorch_cuda.so").exists():
        _run(*pip, "--no-deps", *_called_at_start(site))
        shared = _FIRST_CALL + shared
    (site / "shared.pth").write_text(shared)
    _link_missing(python, site / "torch" / "lib")


def _called_at_start(site: Path) -> list[str]:
    """Requirements of the CUDA runtime, its profiler interface and NVSHMEM, of the releases torch names."""
    needs = next(site.glob("torch-*.dist-info/METADATA")).read_text()
    (cuda,) = set(re.findall(r"Requires-Dist: cuda-toolkit.*==(\d+\.\d+)", needs))
    (nvshmem,) = set(re.findall(r"Requires-Dist: (nvidia-nvshmem-cu\d+==[\d.]+)", needs))
    return [f"nvidia-cuda-runtime=={cuda}.*", f"nvidia-cuda-cupti=={cuda}.*", nvshmem]


def _link_missing(python: str, libraries: Path) -> None:
    while True:
        done = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True)
        missing = _MISSING.search(done.stderr)
        if missing is None:
            break
        (libraries / missing[1]).symlink_to("libc10.so")
    if done.returncode:
        sys.exit(done.stderr)


def _run(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
