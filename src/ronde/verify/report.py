"""Prints a proof: a small table, clause by clause, or JSON."""

from __future__ import annotations

import dataclasses
import json

from ronde.verify.clauses.verdict import Status
from ronde.verify.proof import Proof

__all__ = ["to_json", "to_text"]


def to_text(proof: Proof) -> str:
    """The table that the command prints."""
    job = proof.job
    allowed, per_tensor = proof.tolerance.parameters, proof.tolerance.per_tensor
    what = (
        "of each tensor's largest entry, or thrice what plain torch differs from itself there"
        if per_tensor
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
    if not per_tensor:
        floor = (
            "not known (the script's batches cannot be halved)"
            if proof.floor is None
            else f"{proof.floor:.1e}"
        )
        lines.append(f"  noise floor of plain torch, batches in halves: {floor}")
    if proof.failure:
        lines.append("The run on ranks failed:")
        lines.append(proof.failure)
    lines.append("The law holds." if proof.holds else "The law is broken.")
    return "\n".join(lines)


def to_json(proof: Proof) -> str:
    """The same, for programs."""
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
        "clauses": [{**dataclasses.asdict(each), "status": each.status.name} for each in proof.verdicts],
        "failure": proof.failure,
    }
    return json.dumps(fields, indent=2)
