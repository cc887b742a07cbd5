"""`horovod.run`: calls a function on ranks. `python -m ronde.compat.horovod.running FOLDER` is a rank."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ronde.cluster.host_list import parse_hosts
from ronde.cluster.reach import is_this_host
from ronde.compat.horovod.functions import pickled
from ronde.launch.child_command import run_launcher
from ronde.launch.function import CALL, pickled_call, read_call

__all__ = ["main", "run"]


def run(  # noqa: PLR0913 - Horovod's options
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    np: int | None = None,
    hosts: str | None = None,
    start_timeout: int | None = None,
    output_filename: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    verbose: Any = None,
    use_gloo: bool | None = None,
    disable_cache: bool | None = None,
    **others: Any,
) -> list[Any]:
    """Call `func(*args, **kwargs)` on ranks of this host; return their results by rank.

    Args:
        num_proc, np: number of ranks; `np` is the deprecated name.
        hosts: "localhost:N"; other hosts are refused.
        start_timeout, output_filename, network_interfaces, verbose: options of `ronde horovodrun`.
        use_gloo, disable_cache: accepted without effect: ronde has one controller, and no cache of checks.

    Raises:
        NotImplementedError: another host is named, or an option is not supported.
        UsageError: the function or its arguments cannot be pickled.
        RuntimeError: a rank failed.
    """
    given = sorted(name for name, value in others.items() if value not in (None, False))
    if given:
        raise NotImplementedError(
            f"horovod.run: {', '.join(given)} is not in this version of ronde; put the function in a script, "
            "and start it by ronde horovodrun [R724]"
        )
    if hosts is not None and not all(is_this_host(each.name) for each in parse_hosts(hosts)):
        raise NotImplementedError(
            f"horovod.run(hosts={hosts!r}) takes this host only; put the function in a script, and start it "
            f"by ronde horovodrun -H {hosts} [R724]"
        )
    options = {
        "-np": np or num_proc,
        "--start-timeout": start_timeout,
        "--output-filename": output_filename,
        "--network-interfaces": network_interfaces and ",".join(network_interfaces),
    }
    words = [str(each) for name, value in options.items() if value for each in (name, value)]
    words += ["--verbose"] if verbose else []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, CALL).write_bytes(pickled_call(func, (tuple(args), dict(kwargs or {}))))
        code = run_launcher(["horovodrun", *words, sys.executable, "-m", __name__, folder])
        if code:
            raise RuntimeError(f"horovod.run: the ranks ended with exit code {code}, see above [R724]")
        return [pickle.loads(_result(folder, rank).read_bytes()) for rank in range(np or num_proc)]


def _result(folder: str, rank: int) -> Path:
    return Path(folder, f"result-{rank}.pickle")


def main(folder: str) -> None:
    """Call the function in a folder that `run` prepared, and write its result there."""
    func, (args, kwargs) = read_call(Path(folder, CALL).read_bytes())
    sys.argv[1:] = []
    _result(folder, int(os.environ["HOROVOD_RANK"])).write_bytes(pickled(func(*args, **kwargs)))


if __name__ == "__main__":
    main(sys.argv[1])
