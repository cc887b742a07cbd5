"""Asserts that ranks give the single-device answer: the parity suite of every exact plan.

Three lines in a project's own tests:

    from ronde.testing.parity import assert_parity
    def test_train_on_two_ranks(tmp_path):
        assert_parity("train.py", ["--epochs", "1"], ranks=2, place=tmp_path)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ronde.verify.proof import Proof, judge
from ronde.verify.record import Twin
from ronde.verify.report import to_text
from ronde.verify.runs import FinishedRun, Job, Starter, run_on_ranks, run_plain, spawn

__all__ = ["assert_parity"]


def assert_parity(  # noqa: PLR0913 - each is one word of the statement that is asserted
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    ranks: int,
    place: Path,
    steps: int = 20,
    double: bool = True,
    plan: str = "ddp",
    devices: tuple[str, ...] = (),
    plain: FinishedRun | None = None,
    starter: Starter = spawn,
) -> Proof:
    """Compare runs of a script in plain Python and on ranks.

    Fails with the clauses' table unless the law holds.

    Args:
        script: its path; it runs in (a copy of) the directory that holds it.
        arguments: arguments after its own name in `sys.argv`.
        place: an empty directory for what the runs leave.
        steps: optimizer steps after which a run ends; a script that ends earlier is compared whole.
        double: whether the script computes in double precision, with a tolerance of 1e-11; else in its own
            types.
        devices: a CUDA device for each rank, as `CUDA_VISIBLE_DEVICES` names it; by default the CPU.
        plain: the recorded plain run, when there is one already; by default it is made.
        starter: starter of processes; `WarmHost().start` saves the time of importing torch.

    Raises:
        AssertionError: raised with the table and the first divergence of every broken clause.
    """
    path = Path(script).resolve()
    job = Job(
        script=path.name,
        arguments=tuple(arguments),
        steps=steps,
        double=double,
        plan=plan,
        directory=path.parent,
        devices=devices,
    )
    if plain is None:
        plain = run_plain(job, place / "plain", starter=starter)
    if plain.exit_code:
        raise AssertionError(f"{script} fails in plain python (exit code {plain.exit_code}):\n{plain.stderr}")
    run = run_on_ranks(job, place / "ranks", ranks=ranks, like=plain, starter=starter)

    def start(twin: Twin) -> FinishedRun:
        return run_plain(job, place / twin, twin=twin, like=plain, starter=starter)

    proof = judge(job, plain, run, ranks=ranks, start=start, strict=True)
    if not proof.holds:
        raise AssertionError(to_text(proof))
    return proof
