"""The compared frameworks, and how the processes of each are started."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ronde.bench.contenders import free_port, rank_variables

__all__ = ["FRAMEWORKS", "OURS", "Framework", "Launch"]

Launch: TypeAlias = "tuple[tuple[str, ...], Mapping[str, str]]"
"""A command line, and the variables that it has beside those of this process."""
_Start: TypeAlias = Callable[[Sequence[str], int, int], list[Launch]]

OURS = "ronde"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Framework:
    """A framework and its script in `scripts/`.

    Attributes:
        name: the word of `--against`; the script is `with_NAME.py`.
        start: makes of (interpreter and script, processes, threads of each) what is started.
        module: the package of ronde's own environment that the script needs.
        requirements: the wheels of an environment of its own; empty for engines of torch, which all have
            ronde's environment and so the same torch.
        pythons: the first and the last minor version of Python 3 for which there are wheels.
    """

    name: str
    title: str
    start: _Start
    script: str = ""
    module: str = "torch"
    requirements: tuple[str, ...] = ()
    pythons: tuple[int, int] = (0, 0)

    @property
    def file(self) -> str:
        return self.script or f"with_{self.name}.py"


def _with_places(command: Sequence[str], places: Sequence[Mapping[str, str]], threads: int) -> list[Launch]:
    """Return a process for each place, which is told its number."""
    return [
        (
            tuple(command),
            {
                "DLPERF_RANK": str(rank),
                "DLPERF_RANKS": str(len(places)),
                "OMP_NUM_THREADS": str(threads),
                **variables,
            },
        )
        for rank, variables in enumerate(places)
    ]


def _ronde(command: Sequence[str], ranks: int, threads: int) -> list[Launch]:
    run = (sys.executable, "-m", "ronde", "run", "--quiet", "--seed", "0")
    asked = ("--ranks", str(ranks), "--threads", str(threads))
    return [((*run, *asked, *command[1:]), {})]


def _horovodrun(command: Sequence[str], ranks: int, threads: int) -> list[Launch]:
    run = (sys.executable, "-m", "ronde", "horovodrun", "-np", str(ranks))
    return [((*run, *command), {"OMP_NUM_THREADS": str(threads)})]


def _torch(command: Sequence[str], ranks: int, threads: int) -> list[Launch]:
    port = free_port()
    return _with_places(
        command, [rank_variables(rank, ranks, port, threads) for rank in range(ranks)], threads
    )


def _one_process(command: Sequence[str], ranks: int, threads: int) -> list[Launch]:
    """Start one process with the threads of all."""
    return _with_places(command, [{}], threads * ranks)


def _addresses(ranks: int) -> list[str]:
    return [f"127.0.0.1:{free_port()}" for _ in range(ranks)]


def _tensorflow(command: Sequence[str], ranks: int, threads: int) -> list[Launch]:
    cluster = {"worker": _addresses(ranks)}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": rank}} for rank in range(ranks)]
    return _with_places(
        command, [{"TF_CONFIG": json.dumps(each)} if ranks > 1 else {} for each in tasks], threads
    )


def _paddle(command: Sequence[str], ranks: int, threads: int) -> list[Launch]:
    addresses = _addresses(ranks)
    shared = {
        "PADDLE_TRAINERS_NUM": str(ranks),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses),
        "PADDLE_MASTER": f"127.0.0.1:{free_port()}",
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
    places = [
        {**shared, "PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": address}
        for rank, address in enumerate(addresses)
    ]
    return _with_places(command, places if ranks > 1 else [{}], threads)


def _mxnet(command: Sequence[str], ranks: int, threads: int) -> list[Launch]:
    """Start workers, as many servers, and a scheduler, as MXNet's own launcher does."""
    if ranks == 1:
        return _with_places(command, [{}], threads)
    shared = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_INTERFACE": "lo",
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": str(ranks),
        "DMLC_NUM_SERVER": str(ranks),
    }
    workers = _with_places(command, [{**shared, "DMLC_ROLE": "worker"}] * ranks, threads)
    roles = ["scheduler", *["server"] * ranks]
    return [
        *workers,
        *((tuple(command), {**shared, "DMLC_ROLE": role, "OMP_NUM_THREADS": str(threads)}) for role in roles),
    ]


_ALL = (
    Framework(name=OURS, title="ronde", start=_ronde, script="with_plain.py"),
    Framework(name="ddp", title="DDP", start=_torch),
    Framework(name="accelerate", title="Accelerate", start=_torch, module="accelerate"),
    Framework(name="fabric", title="Fabric", start=_torch, module="lightning_fabric"),
    Framework(name="horovod", title="Horovod script on ronde", start=_horovodrun),
    Framework(name="data-parallel", title="DataParallel", start=_one_process,
              script="with_data_parallel.py"),
    Framework(name="tensorflow", title="TensorFlow", start=_tensorflow,
              requirements=("tensorflow-cpu==2.21.0",), pythons=(10, 13)),
    Framework(name="paddle", title="Paddle", start=_paddle,
              requirements=("paddlepaddle==3.3.1",), pythons=(9, 13)),
    Framework(name="mxnet", title="MXNet", start=_mxnet,
              requirements=("mxnet==1.9.1", "numpy<1.24"), pythons=(8, 11)),
)  # fmt: skip
FRAMEWORKS = {each.name: each for each in _ALL}
