"""A plan's effect: exactness, what one rank switches off, and the description."""

from __future__ import annotations

import pytest

from ronde.plan import Communication, Mesh, Plan, State, expand
from ronde.plan.axes import KEYS
from ronde.plan.describe import describe


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("ddp", ()),
        ("zero3,precision=fp16,micro-batches=4,recompute=full,rng=per-rank,tensor=2,pipeline=2", ()),
        ("ps", ()),
        ("compressor=bf16", ("compressor=bf16",)),
        ("update=local,every=1", ("update=local",)),
        ("ps-bounded,compressor=topk", ("update=bounded", "compressor=topk")),
    ],
)
def test_a_plan_is_exact_unless_an_item_changes_the_update(text: str, because: tuple[str, ...]):
    plan = expand(text)
    assert plan.inexact_because == because
    assert plan.exact is (not because)


def test_one_rank_switches_off_mesh_and_communication_only():
    plan = expand("data=4,tensor=2,compressor=topk,bucket-mb=3,zero1,local-sgd,precision=bf16,batch-dim=1")
    alone = plan.for_ranks(1)
    assert alone.mesh == Mesh(data=1)
    assert alone.communication == Communication()
    assert (alone.state, alone.update, alone.compute, alone.data) == (
        plan.state,
        plan.update,
        plan.compute,
        plan.data,
    )


@pytest.mark.parametrize(
    ("text", "ranks", "degree"),
    [("ddp", 4, 4), ("tensor=2", 8, 4), ("data=4", 4, 4), ("tensor=3", 4, None)],
)
def test_data_takes_the_ranks_that_other_degrees_leave(text: str, ranks: int, degree: int | None):
    assert expand(text).for_ranks(ranks).mesh.data == degree


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("ddp", 25),
        ("zero1", 25),
        ("zero2", 4),
        ("zero3", 4),
        ("central", 4),
        ("zero3,bucket-mb=auto", 4),
        ("zero3,bucket-mb=25", 25),
        ("central,bucket-mb=0.5", 0.5),
        ("bucket-mb=4", 4),
    ],
)
def test_buckets_are_as_large_as_was_asked(text: str, mebibytes: float):
    assert expand(text).bucket_bytes == mebibytes * 2**20


def test_a_description_holds_every_item():
    description = describe(Plan(), ranks=4)
    assert [name for name, _ in description.axes] == [
        *("mesh", "state", "communication", "update", "compute", "data")
    ]
    items = [item for _, items in description.axes for item in items]
    assert len(items) == len(KEYS)
    assert "data=4" in items
    assert "every not set" in items


def test_ddp_is_described():
    description = describe(Plan())
    assert description.plan == "ddp"
    assert description.presets == ("ddp",)
    assert description.update_rule.startswith("w[t+1] = U(w[t], g[t]) once per step, alike on every rank\n")
    assert description.exact
    assert "PyTorch DDP" in description.equals


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("zero2", "each rank its part"),
        ("central", "on rank 0"),
        ("ps", "on the servers"),
        ("ps,optimizer-on=worker", "alike on every worker"),
        ("local-sgd", "each k steps w_r = mean over ranks (every=8)"),
        ("update=local,adaptive=true", "(adaptive=true)"),
        ("decentralized", "U(mean of w[t] over all ranks, g_r[t])"),
        ("decentralized-lowprec", "w_r travels encoded (compressor=int8)"),
        ("async-average", "background average"),
        ("ps-async", "as each gradient arrives (optimizer-on=server)"),
        ("ps-bounded", "no rank leads the slowest by more than s steps (staleness=4)"),
        ("geo", "w += (w_r's change) / W (every=100)"),
        ("geo,compressor=fp16", "w_r's change travels encoded (compressor=fp16)"),
        ("dgc", "g_r travels encoded (compressor=topk); what encoding lost is added to the next"),
        ("qadam", "the optimizer's momentum travels encoded (compressor=int8)"),
    ],
)
def test_the_update_rule_is_told(text: str, rule: str):
    assert rule in describe(expand(text)).update_rule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("local-sgd", "the update is changed by update=local;"),
        ("ps-async,compressor=fp16", "changed by update=async and by compressor=fp16;"),
        ("precision=bf16", "the single-device parameters in precision=bf16, up to floating-point reordering"),
        ("rng=global", "random draws inside the model: the single-device ones (rng=global)"),
        ("rng=per-rank", "random draws inside the model: independent across ranks (rng=per-rank)"),
        ("ddp", "the single-device ones on CPU, independent across ranks on CUDA (rng=auto)"),
    ],
)
def test_exactness_is_explained(text: str, words: str):
    assert words in describe(expand(text)).exactness


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ("local-sgd,every=3", "Paddle LocalSGD"),
        ("zero3,precision=bf16,bucket-mb=9,data=4", "PyTorch FSDP"),
        ("tensor=2", "tensor=2: Megatron-LM, OneFlow SBP"),
        ("pipeline=4", "pipeline=4: GPipe, torchgpipe"),
        ("pipeline=4,schedule=gpipe", "pipeline=4: GPipe, torchgpipe"),
        ("pipeline=4,schedule=1f1b", "pipeline=4: PipeDream-flush, OneFlow stages, Whale"),
        ("pipeline=4,schedule=interleaved", "pipeline=4: Megatron-LM interleaved stages"),
        ("zero3,offload=optimizer", "PyTorch FSDP"),
        ("zero3,offload=optimizer", "offload=optimizer: DeepSpeed ZeRO-Offload"),
        ("zero3,offload=all", "offload=all: PyTorch FSDP's CPUOffloadPolicy, DeepSpeed ZeRO-Infinity"),
        ("pipeline=4,schedule=zero-bubble", "pipeline=4: zero-bubble pipelines"),
        ("context=2", "context=2: Megatron-LM context parallelism"),
        ("expert=2", "expert=2: GShard, DeepSpeed-MoE"),
    ],
)
def test_known_systems_are_named(text: str, system: str):
    assert system in describe(expand(text)).equals


@pytest.mark.parametrize(
    ("text", "ranks", "kept", "moved"),
    [
        (
            "zero1,offload=optimizer",
            2,
            "each rank keeps all parameters",
            "the optimizer's state lies in host memory",
        ),
        ("zero3,offload=all", None, "each rank keeps 1/W of parameters", "all of that lies in host memory"),
        ("offload=optimizer", 1, "one rank keeps everything;", "parameters back to the device"),
        ("zero3,offload=all", 1, "one rank keeps everything;", "units are copied to the device"),
    ],
)
def test_what_lies_in_host_memory_is_told(text: str, ranks: int | None, kept: str, moved: str):
    holds = describe(expand(text), ranks).holds
    assert holds.startswith(kept)
    assert moved in holds
    assert "nothing moves" not in holds


def test_one_rank_has_nothing_to_divide_but_may_offload():
    assert State(placement="zero3").on(1) == State()
    for text in ("zero3", "zero1,offload=optimizer"):
        assert expand(text).state.on(2) == expand(text).state
    assert expand("offload=optimizer").state.on(1).cuts_optimizer
    assert expand("zero3,offload=all").state.on(1) == State(placement="zero3", offload="all")


@pytest.mark.parametrize("text", ["ddp", "zero3", "algorithm=ring"])
def test_between_one_rank_nothing_travels(text: str):
    assert describe(expand(text), 1).algorithm == "nothing travels, there is one rank"
    assert describe(expand(text), 2).algorithm.startswith("on one host: ")


def test_a_plan_that_no_system_has_says_so():
    assert describe(expand("zero3,compressor=onebit")).equals == ()
