"""Executes a user's script as `python SCRIPT` or `python -m MODULE` would."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ronde.errors import UsageError

__all__ = ["as_a_guest", "execute"]


def execute(script: str, arguments: Sequence[str], *, module: bool) -> None:
    """Run `script` as `__main__`; all its exceptions pass through.

    `SystemExit` passes too. The module stays in `sys.modules`, so that pickling, `atexit` and worker
    processes find it.

    Args:
        script: a path, or a dotted module name when `module` is true.
        arguments: `sys.argv[1:]`.

    Raises:
        UsageError: the script or module does not exist.
    """
    if not module and (os.path.isdir(script) or zipfile.is_zipfile(script)):
        # A folder or an archive with a __main__: a rare case that runpy knows well.
        sys.argv[:] = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        return
    code, path, spec = _find_module(script) if module else _find_file(script)
    main = types.ModuleType("__main__")
    names: dict[str, Any] = {
        "__file__": path,
        "__builtins__": __builtins__,
        "__spec__": spec,
        "__package__": spec.parent if spec else None,
        "__cached__": None,
    }
    vars(main).update(names)
    if spec is not None:
        main.__loader__ = spec.loader
    else:
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    sys.argv[:] = [path, *arguments]
    # As the interpreter does; `python -m ronde...` has set sys.path[0].
    sys.path[0:1] = [os.getcwd() if module else os.path.dirname(os.path.abspath(path))]
    sys.modules["__main__"] = main
    exec(code, vars(main))


@contextmanager
def as_a_guest() -> Iterator[None]:
    """Restore `__main__`, `sys.argv` and `sys.path` after a script that ran inside.

    Otherwise a process that is started later by `multiprocessing` would run the script again.
    """
    main, arguments, path = sys.modules["__main__"], list(sys.argv), list(sys.path)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        sys.argv[:] = arguments
        sys.path[:] = path


def _find_file(script: str) -> tuple[types.CodeType, str, None]:
    try:
        with io.open_code(os.path.abspath(script)) as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"cannot read the script {script!r}: {error.strerror} [R175]") from error
    return compile(source, script, "exec"), script, None


def _find_module(name: str) -> tuple[types.CodeType, str, importlib.machinery.ModuleSpec]:
    sys.path[0:1] = [os.getcwd()]
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise UsageError(f"cannot find the module {name!r}: {error} [R176]") from error
    loader: Any = spec.loader if spec else None
    code = loader.get_code(spec.name) if spec and hasattr(loader, "get_code") else None
    if spec is None or code is None or spec.origin is None:
        raise UsageError(f"no module named {name!r} that could be run; is it on the path? [R176]")
    return code, spec.origin, spec
