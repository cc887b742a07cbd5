"""The workloads are fair: a script and its twins do the same training, and none knows ronde."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

import ronde.bench.workloads
from benchmarks.by_hand.__main__ import by_hand
from ronde.bench import meshes, steps
from ronde.bench.contenders import plain, under_ronde, with_peer
from ronde.bench.method import METHODS
from ronde.bench.peers import PEERS, Peer
from ronde.bench.rounds import check_same_training
from ronde.bench.sample import Sample
from ronde.errors import BenchError, UsageError

FOLDER = Path(ronde.bench.workloads.__file__).parent
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")
# Where the peers compute what one device would: no dropout of a rank's own, no statistics of its own.
LIKE_ONE_DEVICE = [name for name in steps.DP_WORKLOADS if name not in steps.NOTES]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TRAJECTORY = ["--steps", "2", "--warm-up", "1", "--trajectory"]


def peer_of(name: str) -> Peer:
    if importlib.util.find_spec(PEERS[name].module) is None:
        pytest.skip(f"{PEERS[name].distribution} is not installed")
    return PEERS[name]


def twin(peer: Peer, workload: str) -> Sample:
    return with_peer(peer, workload, TRAJECTORY, ranks=2, threads=1, environment=ENVIRONMENT).run()


def alone(workload: str) -> Sample:
    return plain(workload, TRAJECTORY, environment=ENVIRONMENT).run()


@pytest.fixture(scope="module")
def trajectories() -> Mapping[str, Sample]:
    """Plain runs by workload, made when first asked for."""

    class Runs(dict[str, Sample]):
        def __missing__(self, workload: str) -> Sample:
            self[workload] = alone(workload)
            return self[workload]

    return Runs()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_workload_imports_ronde(path: Path) -> None:
    """But models over a table of ours, and `ronde.Step`."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    own = any(name.split(".")[0] == "ronde" for name in imported)
    assert own == (path.name in ("clicks.py", "with_step.py"))


def test_the_command_line_knows_the_catalogue() -> None:
    """Without importing it: the catalogue imports torch."""
    (names,) = [
        ast.literal_eval(ast.List([key for key in node.value.keys if key is not None]))
        for node in ast.parse((FOLDER / "catalogue.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    ]
    known = {*steps.LANGUAGE_MODELS, *steps.DP_WORKLOADS, *meshes.WORKLOADS}
    assert sorted(names) == sorted(known)


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_has_its_twin(name: str) -> None:
    assert (FOLDER / PEERS[name].script).is_file()


@pytest.mark.soak
@pytest.mark.parametrize("name", PEERS)
def test_the_mlps_twins_train_like_its_script(name: str, trajectories: Mapping[str, Sample]) -> None:
    check_trajectory(trajectories["mlp"], twin(peer_of(name), "mlp"), name)


@pytest.mark.soak
def test_the_model_that_is_cut_by_hand_trains_like_its_script(trajectories: Mapping[str, Sample]) -> None:
    cut = by_hand("tensor by hand", TRAJECTORY, ranks=2, environment=ENVIRONMENT).run()
    check_trajectory(trajectories["gpt"], cut, "tensor by hand")
    assert cut.losses == pytest.approx(trajectories["gpt"].losses, rel=1e-5)  # of the same batches


@pytest.mark.soak
def test_sequences_that_are_cut_by_hand_train_like_the_script(trajectories: Mapping[str, Sample]) -> None:
    cut = by_hand("context by hand", TRAJECTORY, ranks=2, environment=ENVIRONMENT).run()
    check_trajectory(trajectories["gpt"], cut, "context by hand")
    assert cut.losses == pytest.approx(trajectories["gpt"].losses, rel=1e-5)


@pytest.mark.soak
def test_the_model_that_is_cut_twice_by_hand_trains_like_its_script(
    trajectories: Mapping[str, Sample],
) -> None:
    cut = by_hand("zero3 and tensor by hand", TRAJECTORY, ranks=4, environment=ENVIRONMENT).run()
    assert cut.losses == pytest.approx(trajectories["gpt"].losses, rel=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("workload", [name for name in LIKE_ONE_DEVICE if name != "mlp"])
def test_every_twin_trains_like_its_script(
    workload: str, name: str, trajectories: Mapping[str, Sample]
) -> None:
    check_trajectory(trajectories[workload], twin(peer_of(name), workload), name)


def check_trajectory(script: Sample, other: Sample, name: str) -> None:
    """A twin that trained otherwise would be a weak peer."""
    assert len(script.losses) == len(other.losses) == 3
    assert len(set(script.losses)) == 3
    assert other.losses == pytest.approx(script.losses, rel=1e-3)
    check_same_training(script, other, peer=name)


@pytest.mark.soak
@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("workload", steps.NOTES)
def test_a_twin_that_computes_otherwise_begins_near(
    workload: str, name: str, trajectories: Mapping[str, Sample]
) -> None:
    script, other = trajectories[workload], twin(peer_of(name), workload)
    assert other.losses == pytest.approx(script.losses, rel=0.3)
    assert other.losses != pytest.approx(script.losses, rel=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("workload", steps.DP_WORKLOADS)
def test_ronde_trains_every_workload_like_one_device(
    workload: str, trajectories: Mapping[str, Sample]
) -> None:
    ours = under_ronde(workload, TRAJECTORY, ranks=2, threads=1, environment=ENVIRONMENT).run()
    assert ours.losses == pytest.approx(trajectories[workload].losses, rel=1e-3)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_all_peers_can_be_compared_in_one_call() -> None:
    peers = tuple(peer_of(name) for name in PEERS)
    report = steps.compare_data_parallel(
        ["mlp", "bert"],
        against=peers,
        method=METHODS["global"],
        ranks=2,
        rounds=1,
        steps=2,
        environment=os.environ,
        progress=lambda _: None,
    )
    assert report.settings.keys() >= PEERS.keys()
    titles = [peer.title for peer in PEERS.values()]
    rows = ["ronde", *titles, "no communication"]
    assert [each.labels["contender"] for each in report.results] == rows * 2
    assert all(each.samples["of the limit"][0] > 0 for each in report.results)


@pytest.mark.soak
def test_dlperfs_method_scales_the_batch() -> None:
    report = steps.compare_data_parallel(
        ["mlp"],
        against=(PEERS["ddp"],),
        method=METHODS["dlperf"],
        ranks=2,
        rounds=1,
        steps=None,
        environment=os.environ,
        progress=lambda _: None,
    )
    _, row, limit = report.results
    assert limit.samples["batch"] == (128,)
    assert (row.samples["batch"], row.samples["timed steps"]) == ((128,), (100,))


@pytest.mark.soak
def test_overhead_can_be_measured() -> None:
    report = steps.compare_overhead(
        steps.OVERHEAD_USUAL,
        device="cpu",
        rounds=1,
        steps=20,
        environment=os.environ,
        progress=lambda _: None,
    )
    assert [row.labels["workload"] for row in report.results] == list(steps.OVERHEAD_USUAL)


@pytest.mark.soak
def test_a_batch_that_cannot_be_cut_equally_is_refused() -> None:
    with pytest.raises(BenchError, match="a batch of 64 cannot be cut into 3 equal slices"):
        with_peer(PEERS["ddp"], "mlp", TRAJECTORY, ranks=3, threads=1, environment=ENVIRONMENT).run()


def test_an_unknown_workload_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no workload 'alexnet'.*transformer, gpt"):
        steps.compare_data_parallel(
            ["alexnet"],
            against=(PEERS["ddp"],),
            method=METHODS["global"],
            ranks=2,
            rounds=1,
            steps=1,
            environment={},
            progress=lambda _: None,
        )
    with pytest.raises(UsageError, match=r"no workload 'alexnet'.*host, tiny, mlp-512"):
        steps.compare_overhead(
            ["alexnet"], device="cpu", rounds=1, steps=1, environment={}, progress=lambda _: None
        )


@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda", "needs a CUDA device"), ("tpu", "no --device 'tpu'; choose among cpu, cuda")],
)
def test_a_device_that_there_is_not_is_refused(device: str, message: str) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "-1"}
    with pytest.raises(UsageError, match=message):
        steps.compare_overhead(
            ["tiny"], device=device, rounds=1, steps=1, environment=environment, progress=lambda _: None
        )
