"""A run as a run of MLflow, on a server or in a folder."""

from __future__ import annotations

import itertools
from importlib import import_module

from ronde import __version__
from ronde.errors import UsageError
from ronde.report.export.scalars import scalars_of
from ronde.report.run import RunState

__all__ = ["write_mlflow"]

_EXPERIMENT = "ronde"
# The most metrics that MLflow takes at once.
_BATCH = 1000
_STATUS = {"ended": "FINISHED", "failed": "FAILED", "gone": "KILLED"}


def write_mlflow(run: RunState, uri: str) -> None:
    """Log the curves and settings of the run into the experiment `ronde`.

    Raises:
        UsageError: mlflow is missing, or there is no store at the URI.
    """
    try:
        entities = import_module("mlflow.entities")
        tracking = import_module("mlflow.tracking")
        mlflow_error = import_module("mlflow.exceptions").MlflowException
    except ImportError:
        raise UsageError(
            "--mlflow needs mlflow, which is not installed: pip install 'ronde[mlflow]' [R619]"
        ) from None
    try:
        client = tracking.MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(_EXPERIMENT)
        experiment = client.create_experiment(_EXPERIMENT) if known is None else known.experiment_id
        began = min(rank.steps.wall for rank in run.ranks) // 1_000_000
        made = client.create_run(
            experiment, start_time=began, run_name=run.path.name, tags={"ronde": __version__}
        )
        number = made.info.run_id
        params = [entities.Param(name, str(value)) for name, value in run.start.items()]
        client.log_batch(number, params=params)
        scalars = scalars_of(run)
        while batch := list(itertools.islice(scalars, _BATCH)):
            metrics = [
                entities.Metric(each.name, each.value, round(each.time * 1000), each.step) for each in batch
            ]
            client.log_batch(number, metrics=metrics)
        if run.life in _STATUS:
            client.set_terminated(number, _STATUS[run.life], began + round(run.seconds * 1000))
    except (mlflow_error, ImportError, OSError) as error:
        raise UsageError(f"--mlflow {uri}: {str(error).splitlines()[0]} [R619]") from None
