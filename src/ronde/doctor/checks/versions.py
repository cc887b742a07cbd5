"""The check of versions of Python, torch and other packages."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from ronde.cluster.torch_install import check_torch, newer_than_tried
from ronde.doctor.asked import PreflightRequest
from ronde.doctor.finding import Finding
from ronde.errors import RondeError

__all__ = ["check", "judge"]

CHECK = "versions"


def check(asked: PreflightRequest) -> Finding:
    """Look at installed packages; torch is not imported."""
    problem = ""
    try:
        check_torch()
    except RondeError as error:
        problem = str(error)
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return judge(platform.python_version(), torch, problem, newer_than_tried() if not problem else "")


def judge(python: str, torch: str, problem: str, newer: str | None) -> Finding:
    """Judge by the versions, and the refusal of `ronde run`."""
    told = f"Python {python} ({sys.executable}), torch {torch}"
    if problem:
        return Finding(check=CHECK, level="wrong", summary=told, fix=problem)
    if newer:
        return Finding(check=CHECK, level="note", summary=told, fix=newer)
    return Finding(check=CHECK, level="good", summary=told)
