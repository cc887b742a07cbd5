"""Without an extra, every command that needs it says which `pip install` brings it."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Packages of the extras that are no dependency of torch or of ronde itself.
EXTRAS = {
    "plot": ["matplotlib"],
    "bench": ["accelerate", "lightning_fabric"],
    "mpi": ["mpi4py"],
    "notebook": ["cloudpickle"],
    "ray": ["ray"],
    "server": ["cryptography", "numba", "zmq", "rocksdict", "xxhash"],
    "serve": ["pyarrow", "starlette", "uvicorn", "httptools", "orjson", "prometheus_client", "safetensors"],
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A command line, or code behind `python:`, and the extra that it needs."""

    line: str
    extra: str
    is_slow: bool = False  # half a second, or three with torch


CASES = [
    Case("serve RUN", "serve"),
    Case("export RUN", "serve", is_slow=True),
    Case(
        "python: from pathlib import Path; from ronde.checkpoint.weights import read_weights; "
        "read_weights(Path('model.safetensors'))",
        "serve",
        is_slow=True,
    ),
    Case("run --publish 1 train.py", "serve"),
    Case("run --metrics 9099 train.py", "metrics"),
    Case("ui RUN", "ui", is_slow=True),
    Case("run --ranks 2 --plan ps --servers 1 train.py", "server"),
    Case("server --listen ipc://here --workers 1", "server"),
    Case("python: import ronde; ronde.KVStore", "server", is_slow=True),
    Case("python: import ronde; ronde.ReplicaClient", "server"),
    Case("python: import ronde; ronde.table.Adam(lr=0.1)", "server"),
    Case("verify --plot loss.png train.py", "plot", is_slow=True),
    Case("plan search --devices 2 --plot plans.png train.py", "plot", is_slow=True),
    Case("bench dp --plot dp.png", "plot"),
    Case("bench dp --against accelerate", "bench", is_slow=True),
    Case("bench collectives --against mpi", "mpi", is_slow=True),
    Case("run --ray auto train.py", "ray"),
    Case("python: import ronde; ronde.launch(lambda: None)", "notebook"),
    Case("python: from ronde.cli.notebook import run_cell; run_cell(None, '', '')", "notebook"),
]

# A fork for each case, of one process that has imported the command line; finders that do not see `blocked`.
ASK = """
import json, os, sys, tempfile, traceback
import ronde.cli
from ronde.errors import RondeError
cases, blocked = json.loads(sys.argv[1]), set(sys.argv[2].split())
class Without:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
for name in [name for name in sys.modules if name.partition(".")[0] in blocked]: del sys.modules[name]
for case in cases:
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
            try:
                head, _, code = case.partition("python: ")
                exec(code) if code else ronde.cli.main(case.split())
            except RondeError as error:
                print(f"ronde: {error}")
            except SystemExit:
                pass
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(0)
        os.waitpid(child, 0)
        said.seek(0)
        print(json.dumps([case, said.read()]), flush=True)  # the next fork copies what is buffered
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], str]:
    """Output of a case without the packages of any extra, in a folder with a script."""
    folder: Path = tmp_path_factory.mktemp("extras")
    (folder / "train.py").write_text("print('not reached')\n")

    @functools.cache
    def answers(is_slow: bool) -> dict[str, str]:
        lines = [case.line for case in CASES if case.is_slow == is_slow]
        command = [
            sys.executable,
            "-c",
            ASK,
            json.dumps(lines),
            " ".join(name for each in EXTRAS.values() for name in each),
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(line) for line in done.stdout.splitlines())

    return lambda case: answers(case.is_slow)[case.line]


@pytest.mark.parametrize(
    "case", [pytest.param(each, id=each.line, marks=[pytest.mark.soak] * each.is_slow) for each in CASES]
)
def test_a_missing_extra_is_answered_by_its_installation(answer: Callable[[Case], str], case: Case) -> None:
    said = answer(case)
    assert f"pip install 'ronde[{case.extra}]'" in said, said
    assert "Traceback" not in said
    assert said.count("\n") <= 3
