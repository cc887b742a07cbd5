"""How contenders are run; what they compute is in test_workloads."""

from __future__ import annotations

from ronde.bench.contenders import plain, under_ronde, with_peer
from ronde.bench.peers import LIMIT, PEERS


def test_commands_can_be_repeated_and_hold_no_paths_of_the_host() -> None:
    ours = under_ronde("mlp", ["--steps", "3"], ranks=2, threads=1, environment={})
    twin = with_peer(PEERS["fabric"], "mlp", ["--steps", "3"], ranks=2, threads=1, environment={})
    assert ours.command == (
        "python -m ronde run --ranks 2 --seed 0 --threads 1 workloads/plain.py mlp --steps 3"
    )
    assert twin.command == "python workloads/with_fabric.py mlp --steps 3"
    assert plain("mlp", [], environment={}).command == "python workloads/plain.py mlp"


def test_the_limit_is_a_twin_that_need_not_train_alike() -> None:
    limit, ddp = (
        with_peer(peer, "mlp", [], ranks=2, threads=1, environment={}) for peer in (LIMIT, PEERS["ddp"])
    )
    assert limit.command == "python workloads/with_apart.py mlp"
    assert (limit.trains_alike, ddp.trains_alike) == (False, True)


def test_some_workloads_are_a_script_of_their_own() -> None:
    assert (
        plain("tiny", ["--steps", "3"], environment={}).command
        == "python workloads/short_steps.py tiny --steps 3"
    )
    ours = under_ronde("start-up", [], ranks=1, threads=None, environment={})
    assert ours.command == "python -m ronde run --ranks 1 --seed 0 workloads/start_up.py"
