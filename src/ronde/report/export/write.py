"""Exports of a run that a user has asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from ronde.errors import UsageError
from ronde.report.export.files import write_csv, write_json
from ronde.report.export.mlflow import write_mlflow
from ronde.report.export.tensorboard import write_tensorboard
from ronde.report.run import RunState

__all__ = ["Exports"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Exports:
    """Targets of exports; None for an export that is not wanted.

    Attributes:
        csv, json: a file.
        tensorboard: a folder.
        mlflow: URI of a tracking store, such as `http://host:5000`.
    """

    csv: Path | None = None
    json: Path | None = None
    tensorboard: Path | None = None
    mlflow: str | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in dataclasses.fields(self))

    def write(self, run: RunState) -> Iterator[str]:
        """Write each of them, and yield its name.

        Raises:
            UsageError: a target cannot be written, or a package is missing.
        """
        for option, target, function in (
            ("--csv", self.csv, write_csv),
            ("--json", self.json, write_json),
            ("--tensorboard", self.tensorboard, write_tensorboard),
        ):
            if target is None:
                continue
            try:
                function(run, target)
            except OSError as error:
                raise UsageError(
                    f"cannot write {option} {target}: {error.strerror}; choose another [R619]"
                ) from None
            yield str(target)
        if self.mlflow is not None:
            write_mlflow(run, self.mlflow)
            yield self.mlflow
