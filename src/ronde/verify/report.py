"""Prints a proof: a small table, clause by clause, or JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from ronde.verify.clauses.verdict import Status
from ronde.verify.proof import Proof
from ronde.verify.twins import Rounding

__all__ = ["to_json", "to_text"]


def to_text(proof: Proof) -> str:
    """Return the table that the command prints."""
    job = proof.job
    tolerance = proof.tolerance
    allowed = tolerance.parameters
    what = (
        "of each tensor's largest entry, or thrice what plain torch differs from itself there"
        if tolerance.per_tensor
        else "of the vector of all parameters, or thrice what twins of the plain run differ"
        if proof.twins
        else "of the vector of all parameters"
    )
    narrow = job.precision != "fp32"
    reference = f"plain python with {job.reference}" if narrow else "plain python"
    lines = [
        f"{job.script} on {proof.ranks} ranks against {reference}: plan {job.plan}, {proof.dtype}, "
        f"{proof.steps} optimizer steps"
    ]
    for each in proof.verdicts:
        mark = {Status.holds: "holds", Status.broken: "BROKEN", Status.nothing: "-"}[each.status]
        worst = (
            f"; largest difference {each.worst:.1e} (allowed {allowed:.1e} {what})"
            if each.worst is not None
            else ""
        )
        lines.append(f"  {each.clause} {each.title:<11}{mark:<7} {each.compared}{worst}")
        if each.divergence:
            lines.append(f"{'':15}first: {each.divergence}")
    if proof.floor is not None and proof.twins:
        of = "a twin" if proof.twins == 1 else f"{proof.twins} twins"
        lines.append(f"  noise floor: {proof.floor:.1e}, by {of} of the plain run")
    if blurred := tolerance.noise.blurred(tolerance.sharp):
        lines.append(f"  {_blurred(blurred, len(tolerance.noise.shares), tolerance.sharp)}")
    if proof.parting is not None:
        lines.append(
            f"  rounding: a twin does something else from step {proof.parting.step} on "
            f"({proof.parting.what}), so ranks are compared until there"
        )
    if proof.rounding is not None:
        lines.append(f"  {_rounding(proof.rounding)}")
    if proof.note:
        lines.append(f"  compared in the script's own types: in double precision {proof.note}")
    if proof.failure:
        lines.append("The run on ranks failed:")
        lines.append(proof.failure)
    lines.append("The law holds." if proof.holds else "The law is broken.")
    return "\n".join(lines)


def _blurred(first: Mapping[str, int], of: int, distance: float) -> str:
    name = min(first, key=lambda each: first[each])
    return (
        f"rounding: plain python's own twins lie more than {distance:.0e} apart in {len(first)} of {of} "
        f"parameters, first in {name} after step {first[name]}; smaller mistakes do not show there"
    )


def _rounding(rounding: Rounding) -> str:
    turned = rounding.turned
    return (
        f"rounding: from step {rounding.step} on, by a tie or a kink that the last places decide; the "
        f"closest is in {turned.place} at step {turned.step}, by {turned.apart:.1e} of the largest of "
        f"{turned.of} numbers"
    )


def to_json(proof: Proof) -> str:
    """Return the proof as JSON, for programs."""
    job = proof.job
    fields = {
        "holds": proof.holds,
        "script": job.script,
        "arguments": list(job.arguments),
        "ranks": proof.ranks,
        "plan": job.plan,
        "dtype": proof.dtype,
        "seed": job.seed,
        "steps": proof.steps,
        "noise_floor": proof.floor,
        "twins": proof.twins,
        "rounding": None if proof.rounding is None else dataclasses.asdict(proof.rounding),
        "parting": None if proof.parting is None else dataclasses.asdict(proof.parting),
        "blurred_after_step": proof.tolerance.noise.blurred(proof.tolerance.sharp),
        "not_in_double_precision": proof.note,
        "clauses": [{**dataclasses.asdict(each), "status": each.status.name} for each in proof.verdicts],
        "failure": proof.failure,
    }
    return json.dumps(fields, indent=2)
