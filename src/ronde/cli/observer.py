"""The program of an observer: see `ronde.launch.observer`."""

from __future__ import annotations

import sys

__all__ = ["COMMAND", "main"]

# A file of the working directory must not shadow a module.
COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path[:1] = []; from ronde.cli.observer import main; main()",
)


def main() -> None:
    """Watch the ranks of this host until they are gone."""
    from ronde.cli.explaining import explain
    from ronde.cli.metrics_option import serving_metrics
    from ronde.launch.observer import observe

    observe(explain, serving_metrics)
