"""Explanation why no batch was cut in a run on several ranks."""

from __future__ import annotations

from collections.abc import Iterable

from ronde.modules.calls import Calls

__all__ = ["why_uncut"]


def why_uncut(calls: Calls, started: Iterable[str]) -> str:
    """Return the likeliest reason.

    Args:
        started: names of functions for which the script has started processes.
    """
    if calls.explained:
        return (
            "nothing was cut: every rank computed everything, right but no faster; the notes on modules say "
            "why [R304]"
        )
    if functions := ", ".join(list(started)[:3]):
        return (
            "nothing was cut: every rank computed everything, right but no faster; ronde cuts calls of a "
            f"torch.nn.Module in the script's own process, and it started others for {functions} [R304]"
        )
    if calls.beside:
        return (
            "nothing was cut: every rank computed everything, right but no faster; ronde cuts calls of a "
            "torch.nn.Module in the script's main thread, and this script called its modules in another "
            "[R304]"
        )
    if functions := ", ".join(list(calls.in_functions)[:3]):
        return (
            "nothing was cut: every rank computed everything, right but no faster; ronde cuts calls of a "
            "torch.nn.Module outside of any torch.autograd.Function, and this script called its modules in "
            f"the forward of {functions} [R304]"
        )
    return (
        "nothing was cut: every rank computed everything, right but no faster; ronde cuts calls of a "
        "torch.nn.Module on a batch with at least as many rows as ranks, by the __call__ that torch gives "
        "it; this script made none [R304]"
    )
