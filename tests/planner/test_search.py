"""The search: its invariants, walls that were planted, and what it says where nothing fits."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ronde.errors import UsageError
from ronde.plan import expand, mesh_rules
from ronde.plan.axes import KEYS
from ronde.plan.validate import contradictions
from ronde.planner.candidates import Candidates, plan_of
from ronde.planner.cluster import Cluster
from ronde.planner.cluster_file import read_cluster
from ronde.planner.device import Device
from ronde.planner.enumeration import Fixed, enumerate_candidates
from ronde.planner.estimate import Setting, memory_of, seconds_of, simulated
from ronde.planner.link import Link
from ronde.planner.modelled import NOT_MODELLED, PRICED
from ronde.planner.report import report
from ronde.planner.search import fitting, front, search
from ronde.planner.software import ronde_software
from ronde.planner.transformer import MODELS, TransformerSizes, transformer_graph

SMALL = TransformerSizes(
    name="small", layers=8, hidden=1024, heads=16, vocabulary=32000, sequence=1024, batch=64
)
BF16 = expand("precision=bf16")


def setting(cluster: Cluster, model: TransformerSizes = SMALL) -> Setting:
    graph = transformer_graph(model)
    return Setting(cluster=cluster, graph=graph, software=ronde_software("bf16", 2, 4, 25 * 2**20))


def with_device(cluster: Cluster, **changes: float) -> Cluster:
    def changed(device: Device) -> Device:
        return dataclasses.replace(device, **changes)

    groups = tuple(dataclasses.replace(group, device=changed(group.device)) for group in cluster.groups)
    return dataclasses.replace(cluster, groups=groups)


def faster(link: Link, times: float) -> Link:
    def changed(constants: object) -> object:
        return dataclasses.replace(constants, beta=constants.beta * times)  # type: ignore[attr-defined, type-var]

    measured = {key: changed(value) for key, value in link.measured.items()}
    return dataclasses.replace(link, usual=changed(link.usual), measured=measured)  # type: ignore[arg-type]


def test_every_key_of_a_plan_has_a_cost_or_a_reason() -> None:
    assert set(PRICED) | set(NOT_MODELLED) == set(KEYS)
    assert not set(PRICED) & set(NOT_MODELLED)


@pytest.mark.parametrize("devices", [1, 2, 8, *(pytest.param(n, marks=pytest.mark.soak) for n in (24, 64))])
def test_pruning_equals_brute_force(devices: int) -> None:
    """Of all candidates costed one by one, those that fit and the quickest are those of the search."""
    model = dataclasses.replace(SMALL, layers=24, hidden=4096, heads=32)
    here = setting(read_cluster("8xV100-100GbE").resized(devices), model)
    every = enumerate_candidates(here.graph, devices, Fixed())
    fit, _ = fitting(here, every)
    brute = [
        place
        for place in range(len(every))
        if memory_of(here, Candidates.one(every.point(place))).total[0] <= here.cluster.memory
    ]
    assert [fit.point(place) for place in range(len(fit))] == [every.point(place) for place in brute]
    if brute:
        alone = min(float(seconds_of(here, Candidates.one(every.point(place))).total[0]) for place in brute)
        assert seconds_of(here, fit).total.min() == pytest.approx(alone)


def test_more_bandwidth_is_never_slower() -> None:
    slow = read_cluster("dgx-a100").resized(32)
    quick = dataclasses.replace(slow, node=faster(slow.node, 2), network=faster(slow.network, 2))
    every = enumerate_candidates(transformer_graph(SMALL), 32, Fixed())
    before, after = seconds_of(setting(slow), every).total, seconds_of(setting(quick), every).total
    assert (after <= before + 1e-12).all()


def test_more_memory_never_leaves_fewer_plans() -> None:
    model = dataclasses.replace(MODELS["llama2-7b"], batch=64)
    every = enumerate_candidates(transformer_graph(model), 8, Fixed())
    counts = [
        len(fitting(setting(with_device(read_cluster("dgx-a100"), memory=size * 2.0**30), model), every)[0])
        for size in (10, 20, 40, 80, 160)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_the_simulator_agrees_with_the_closed_form_where_stages_are_alike() -> None:
    """Sends and uneven stages are all that may part them."""
    model = dataclasses.replace(SMALL, layers=16, vocabulary=64)
    here = setting(read_cluster("dgx-a100").resized(8), model)
    every = enumerate_candidates(here.graph, 8, Fixed(pipeline=4))
    closed = seconds_of(here, every)
    ran = simulated(here, every, closed)
    for place in range(0, len(every), 7):
        assert ran[place] == pytest.approx(float(closed.total[place]), rel=0.12), every.point(place)


@pytest.mark.parametrize("quickest", [1, 10])
def test_only_what_cannot_be_among_the_quickest_is_not_simulated(quickest: int) -> None:
    here = setting(read_cluster("dgx-a100").resized(16), dataclasses.replace(SMALL, layers=16))
    every = enumerate_candidates(here.graph, 16, Fixed(tensor=1))
    closed = seconds_of(here, every)
    whole, some = simulated(here, every, closed), simulated(here, every, closed, quickest)
    order = np.argsort(whole, kind="stable")[:quickest]
    assert np.argsort(some, kind="stable")[:quickest].tolist() == order.tolist()
    assert (some[np.isfinite(some)] == whole[np.isfinite(some)]).all()
    assert np.isinf(some).sum() > len(every) / 2


def test_the_front_has_no_plan_that_another_beats() -> None:
    generator = np.random.default_rng(0)
    seconds, memory = generator.random(200), generator.random(200)
    found = front(seconds, memory)
    for place in range(200):
        beaten = ((seconds <= seconds[place]) & (memory < memory[place])).any() or (
            (seconds < seconds[place]) & (memory <= memory[place])
        ).any()
        assert found[place] == (not beaten)


def planted(wall: str, kind: int) -> tuple[Cluster, TransformerSizes, str]:
    """A cluster and a plan at a wall that is known beforehand; two of each wall."""
    cluster = read_cluster("dgx-a100").resized(8 if kind else 16)
    model, plan = SMALL, "ddp"
    if wall == "compute":
        cluster = with_device(cluster, sustained=0.1 if kind else 0.2)
    elif wall == "communication":
        cluster = dataclasses.replace(
            cluster, node=faster(cluster.node, 1 / 400), network=faster(cluster.network, 1 / 400)
        )
        plan = "ddp" if kind else "zero1"
    elif wall == "bubble":
        model = dataclasses.replace(SMALL, layers=16, hidden=4096, heads=32, batch=16 if kind else 32)
        plan = f"pipeline=8,schedule={'gpipe' if kind else '1f1b'},micro-batches=2"
    elif wall == "data":
        cluster = dataclasses.replace(cluster, loader=10.0 if kind else 30.0)
    else:
        # Kernels are ideal already, and there is room for activations only where they are computed again.
        model = dataclasses.replace(SMALL, layers=24, hidden=2048, heads=32, batch=512, sequence=64)
        ideal = dict.fromkeys(
            ("gemm_efficiency", "attention_efficiency", "copy_efficiency", "sustained"), 1.0
        )
        room = (24 if kind else 16) * 2.0**30
        cluster = with_device(cluster.resized(8), **ideal, memory=room, gemm_floor=0.0, launch=0.0)
        plan = "ddp" if kind else "zero1"
    return cluster, model, plan


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("wall", ["compute", "memory", "communication", "bubble", "data"])
def test_a_planted_wall_is_named(wall: str, kind: int) -> None:
    cluster, model, plan = planted(wall, kind)
    base = expand(f"{plan},precision=bf16")
    keys = {"state", "tensor", "pipeline", "context"} | ({"micro-batches"} if wall != "memory" else set())
    answer = search(transformer_graph(model), cluster, base, keys=keys)
    best = answer.choices[0]
    assert best.walls[0][0] == wall, best
    assert 0 <= best.walls[1][1] <= best.walls[0][1]


@pytest.fixture
def without_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version in which a pipeline has no schedule but GPipe's."""
    monkeypatch.setitem(mesh_rules._WITH_PIPELINE, "schedule", ("gpipe", None))


@pytest.mark.usefixtures("without_schedules")
def test_nothing_fits_names_the_nearest_and_the_smallest_cluster() -> None:
    graph = transformer_graph(MODELS["gpt3-175b"])
    answer = search(graph, read_cluster("dgx-a100"), BF16)
    found = answer.no_fit
    assert found is not None
    assert answer.choices == ()
    assert sum(found.kinds.values()) == pytest.approx(found.allocated)
    assert found.allocated > found.available
    there = search(graph, read_cluster("dgx-a100").resized(found.devices), BF16)
    assert there.choices
    assert not search(graph, read_cluster("dgx-a100").resized(found.devices - 8), BF16).choices
    # What is not built is marked, and the smallest cluster is named for what is.
    assert found.with_missing
    assert found.runs >= found.devices
    there = search(graph, read_cluster("dgx-a100").resized(found.runs), BF16)
    assert any(not choice.missing for choice in there.choices)
    page = report(answer)
    assert f"{found.with_plan}  (not in this version)" in page
    assert f"smallest by a plan of this version: {found.runs}, by {found.with_plan_that_runs}" in page


@pytest.mark.usefixtures("without_schedules")
def test_all_that_is_not_built_is_named() -> None:
    page = report(
        search(transformer_graph(SMALL), read_cluster("dgx-a100"), expand("precision=fp32"), top=60)
    )
    named = " ".join(page.partition("not in this version: ")[2].partition(";")[0].split())
    assert "pipeline=2 with schedule=zero-bubble" in named.split(", "), page
    assert named.count("pipeline=2 with schedule=") == 1


@pytest.mark.usefixtures("without_schedules")
def test_plans_are_ready_to_run_or_said_not_to_be() -> None:
    answer = search(transformer_graph(SMALL), read_cluster("dgx-a100"), BF16)
    assert any(not choice.missing for choice in answer.choices)
    for choice in answer.choices:
        assert expand(choice.plan).compute.precision == "bf16"
        assert bool(choice.missing) == any(
            each in choice.plan for each in ("=zero-bubble", "=interleaved", "=1f1b")
        )
        assert choice.low < choice.seconds < choice.high


def test_inexact_plans_come_only_when_asked_for() -> None:
    graph, cluster = transformer_graph(SMALL), read_cluster("8xV100-100GbE")
    plain = search(graph, cluster, expand("precision=fp32"), top=50)
    asked = search(graph, cluster, expand("precision=fp32"), top=50, allow_inexact=True)
    assert all(choice.exact for choice in plain.choices)
    assert any(not choice.exact for choice in asked.choices)
    # None of them goes with fp16, and that is said.
    none = search(graph, cluster, expand("precision=fp16"), top=50, allow_inexact=True)
    assert "no plan that changes the update goes with what is fixed" in "".join(none.notes)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ("tensor=3", "tensor=3 and 8 ranks contradict each other; nearest legal: 9 ranks"),
        ("state=zero2,compressor=int8", "compressor=int8 and state=zero2 contradict each other"),
        ("micro-batches=128", "no plan with micro-batches=128 gives each of 8 devices a sample"),
    ],
)
def test_what_no_plan_can_have_is_refused(items: str, said: str) -> None:
    base = expand(f"{items},precision=bf16")
    keys = [item.partition("=")[0] for item in items.split(",")]
    with pytest.raises(UsageError, match=said):
        search(transformer_graph(SMALL), read_cluster("dgx-a100"), base, keys=keys)


@pytest.mark.parametrize(
    "items", ["ps-async", "onebit", "local-sgd", "compile=true", "state=server", "compressor=int8"]
)
def test_no_candidate_contradicts_what_is_fixed(items: str) -> None:
    base = expand(f"{items},precision=bf16")
    graph, cluster = transformer_graph(SMALL), read_cluster("8xV100-100GbE").resized(2)
    for choice in search(graph, cluster, base, top=50, allow_inexact=True).choices:
        plan = expand(choice.plan)
        assert not contradictions(plan, 2), choice.plan
        assert "server" not in items or plan.state.placement == "server"


def test_fixed_keys_stay() -> None:
    base = expand("zero1,precision=bf16,recompute=full")
    answer = search(transformer_graph(SMALL), read_cluster("dgx-a100"), base, keys={"state", "recompute"})
    for choice in answer.choices:
        plan = expand(choice.plan)
        assert (plan.state.placement, plan.compute.recompute) == ("zero1", "full")


def test_a_batch_that_does_not_divide_is_told_with_the_nearest() -> None:
    model = dataclasses.replace(SMALL, batch=60)
    answer = search(transformer_graph(model), read_cluster("dgx-a100"), BF16)
    assert any("the nearest that does is 64" in note for note in answer.notes)


def test_outside_of_what_was_fitted_the_interval_is_wider() -> None:
    cluster = read_cluster("dgx-a100")
    narrow = dataclasses.replace(cluster, batches=(1e9, math.inf))
    inside = search(transformer_graph(SMALL), cluster, BF16).choices[0]
    outside = search(transformer_graph(SMALL), narrow, BF16).choices[0]
    assert outside.high - outside.seconds > 1.9 * (inside.high - inside.seconds)


def test_candidates_spell_plans_and_back() -> None:
    from ronde.planner.candidates import point_of

    every = enumerate_candidates(transformer_graph(SMALL), 16, Fixed())
    for place in range(0, len(every), 11):
        point = every.point(place)
        assert point_of(str(plan_of(point, BF16)), 16) == point
