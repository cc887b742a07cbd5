"""The exception tree. Every message names the problem, the value, and the fix.

RondeError            base of errors that a user may catch
  UsageError          a mistake on the command line or in a call (exit code 2)
    PlanError         an unknown, contradictory or not yet built plan value
  LaunchError         ranks could not be started
  FunctionError       a function that `ronde.launch` ran has raised on some rank
  BenchError          a measured run failed, or measured something else
PeerLost              a peer rank died (a BaseException, see there)
  RaisedAlone         an exception of one rank that the others cannot raise too
  DivergedError       ranks took different paths through the script
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "BenchError",
    "DivergedError",
    "FunctionError",
    "LaunchError",
    "PeerLost",
    "PlanError",
    "RaisedAlone",
    "RondeError",
    "UsageError",
]


class RondeError(Exception):
    """Base of the errors that ronde raises for its users."""

    exit_code = 1


class UsageError(RondeError):
    """A mistake on the command line or in a call; exit code 2."""

    exit_code = 2


class PlanError(UsageError):
    """A plan with unknown, contradictory or unbuilt values."""


class LaunchError(RondeError):
    """Ranks could not be started on this host."""


class FunctionError(RondeError):
    """A function that `ronde.launch` ran has raised; the message holds the rank's traceback."""


class BenchError(RondeError):
    """A measured run failed, or measured something else than it should."""


class PeerLost(BaseException):
    """A collective failed because a peer rank died or took another path.

    A `BaseException`, as `KeyboardInterrupt` is: a script's `except Exception` must not swallow
    it, or the surviving ranks would go on with half a reduction. The launcher names the rank that
    failed first; this error itself is never the news.
    """


class RaisedAlone(PeerLost):
    """An exception of one rank that its peers cannot repeat; ends the run.

    Args:
        error: the exception that was raised.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class DivergedError(PeerLost):
    """Ranks took different paths through the script. Unlike its base it is the news, and says all there is.

    Args:
        paths: rank number, line of the script, and operation there, for each known rank.
    """

    def __init__(self, paths: Iterable[tuple[int, str, str]]) -> None:
        self.paths = tuple(sorted(paths))
        places = "".join(f"  rank {rank} at {where}: {what}\n" for rank, where, what in self.paths)
        super().__init__(
            "the ranks have diverged: they take different paths through the script, so their results would "
            f"be wrong\n{places}{ADVICE_ON_DIVERGENCE} [R190]"
        )


ADVICE_ON_DIVERGENCE = (
    "usual causes: a branch or a generator's seed that depends on the process id, the host name, os.urandom, "
    "the order of os.listdir or of a set, what a library's clock says, or what threads and processes of the "
    "script do: they read a model's output, set a learning rate, or make batches in an order of their own\n"
    "fix: count steps instead of seconds, seed with a fixed number, sort what is listed, give threads "
    "output.numpy(), or use --ranks 1"
)
