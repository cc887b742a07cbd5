"""Checks of the script before ranks start."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from pathlib import Path

from ronde.errors import UsageError

__all__ = ["check_module", "check_script"]

_DEBUGGERS = ("pdb", "ipdb", "pudb")


def check_script(script: str, *, syntax_error: int = 1) -> None:
    """Refuse a script that ranks could not read.

    An error of syntax is printed as python prints it, and ends the command.

    Args:
        syntax_error: the exit code for that; python's own unless the command has another meaning for 1.
    """
    if script == "-":
        raise UsageError("a script from stdin cannot be read by every rank; save it to a file [R175]")
    path = Path(script)
    if not path.exists():
        raise UsageError(
            f"there is no script {script!r} in {Path.cwd()}{_nearest(path)}; ronde's own options go "
            "before it [R175]"
        )
    if path.is_dir():
        _check_folder(path)
        return
    if not path.is_file():
        raise UsageError(f"{script} is not a file that every rank can read; save the script to one [R175]")
    if path.suffix not in ("", ".py"):
        return  # an archive with a __main__ is checked by Python
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the script {script!r}: {error.strerror}; see its owner and rights with ls -l [R175]"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the rank prints the warnings
            compile(source, script, "exec", dont_inherit=True)
    except SyntaxError as error:
        import traceback

        traceback.print_exception(type(error), error, None)
        sys.exit(syntax_error)
    except ValueError:
        return  # null bytes: an archive without a suffix, or a file that Python will refuse


def check_module(name: str) -> None:
    """Refuse a module if not even its package can be found."""
    if name.endswith(".py") and Path(name).exists():
        raise UsageError(f"{name} is a path, not a module; leave -m out: ronde run {name} [R176]")
    if name in _DEBUGGERS:
        raise UsageError(
            f"-m {name} would step through every rank by itself; write breakpoint() into the script, "
            f"which opens on rank 0, or debug in plain python: python -m {name} SCRIPT [R176]"
        )
    top = name.partition(".")[0]
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = bool(top) and importlib.util.find_spec(top) is not None
    except ValueError:  # a module without a specification, such as __main__
        found = False
    finally:
        sys.path.pop(0)
    if not found:
        raise UsageError(f"there is no module {name!r}; with a path, leave -m out: ronde run PATH [R176]")


def _check_folder(path: Path) -> None:
    if (path / "__main__.py").exists():
        return
    inside = sorted(each.name for each in path.glob("*.py"))
    such = f", such as {path / inside[0]}" if inside else ""
    raise UsageError(f"{path} is a folder without a __main__.py; name the script in it{such} [R175]")


def _nearest(path: Path) -> str:
    """Return the script with the nearest name in the same folder."""
    if not path.parent.is_dir():
        return f" (nor a folder {str(path.parent)!r})"
    import difflib

    scripts = [each.name for each in path.parent.glob("*.py")]
    near = difflib.get_close_matches(path.name, scripts, n=1) or [
        name for name in scripts if name == f"{path.name}.py"
    ]
    return f" (did you mean {path.parent / near[0]}?)" if near else ""
