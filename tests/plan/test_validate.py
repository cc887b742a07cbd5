"""What is refused: not built yet, contradictory, not fitting the ranks; and all of it at once."""

from __future__ import annotations

import pytest

from ronde.errors import PlanError
from ronde.messages import lift
from ronde.plan import PRESETS, check, expand, read_plan, validate

BUILT_PRESETS = (
    "ddp", "hierarchical", "central", "zero1", "zero2", "zero3", "hybrid",
    "ps", "ps-async", "ps-bounded", "geo", "local-sgd", "dgc", "onebit", "twobit", "bytegrad", "qadam",
    "powersgd", "fp16-allreduce", "decentralized", "decentralized-lowprec", "async-average",
)  # fmt: skip

AVAILABLE = [
    *BUILT_PRESETS,
    "data=auto",
    "bucket-mb=0.001",
    "bucket-mb=1000",
    "rng=global",
    "rng=per-rank",
    "batch-dim=0",
    "batch-dim=3",
    "loading=sliced",
    "loading=full",
    "algorithm=ring",
    "algorithm=tree",
    "algorithm=shared-memory",
    "micro-batches=7",
    "recompute=full,micro-batches=2",
    "recompute=selective",
    "precision=bf16,compile=true",
    "precision=fp16,recompute=full,micro-batches=2",
    "precision=tf32",
    "hybrid,servers=2",
    "hybrid,servers=2,update=bounded,staleness=4",
    "zero1,offload=optimizer",
    "zero2,offload=optimizer",
    "zero3,offload=optimizer,precision=bf16",
    "zero3,offload=all",
    "central,offload=optimizer",
    "central,offload=all",
    "ps,servers=3",
    "ps,optimizer-on=worker,servers=2",
    "ps,bucket-mb=4,rng=global,batch-dim=1,loading=full,precision=bf16,micro-batches=2,recompute=full",
    "ps-async,rng=per-rank,loading=sliced,precision=bf16,recompute=full",
    "geo,compile=true,precision=tf32",
    "hybrid,servers=2,algorithm=ring,bucket-mb=4,rng=global,loading=full",
    "hybrid,servers=2",
    "geo,every=3",
    "ps-bounded,staleness=0",
    "ddp,state=replicated,sparse=replicated,offload=none,algorithm=auto,compressor=none,update=sync",
    "precision=fp32,micro-batches=1,recompute=none,compile=false,tensor=1,pipeline=1,context=1,expert=1",
    "dgc,density=0.01,warm-up=100",
    "twobit,threshold=0.5,precision=bf16",
    "powersgd,low-rank=4,warm-up=10,algorithm=ring",
    "compressor=randomk,density=0.1",
    "compressor=bf16,error-feedback=true,micro-batches=2,recompute=full",
    "qadam,warm-up=50,bucket-mb=4",
    "reduction=sum,algorithm=tree",
    "predivide=2",
    "local-sgd,every=4,warm-up=100,precision=bf16,algorithm=ring",
    "local-sgd,adaptive=true",
    "async-average,warm-up=10,rng=per-rank,loading=sliced",
    "optimizer-on=worker,adaptive=false,error-feedback=false,compressed=gradient",
]

# As above, on so many ranks.
AVAILABLE_ON = [
    ("pipeline=2", 2),
    ("data=2,pipeline=2,micro-batches=4,schedule=gpipe", 4),
    ("tensor=2", 2),
    ("data=2,tensor=2,precision=tf32,algorithm=ring,bucket-mb=4,rng=per-rank,loading=full", 4),
    ("data=2,tensor=2,zero1", 4),
    ("tensor=2,pipeline=2,zero1,micro-batches=2", 8),
    ("data=2,pipeline=2,zero1,micro-batches=4", 4),
    ("tensor=2,pipeline=2,micro-batches=4,schedule=1f1b", 8),
    ("data=2,pipeline=2,micro-batches=4,schedule=interleaved,recompute=full", 4),
    ("tensor=2,pipeline=2,micro-batches=4,schedule=zero-bubble", 4),
    ("tensor=2,precision=fp16,micro-batches=4", 2),
    ("pipeline=2,precision=fp16,recompute=full", 2),
    ("context=2,recompute=selective,micro-batches=2", 2),
    ("expert=2,precision=bf16,micro-batches=2", 2),
    ("expert=2", 4),
    ("data=4,expert=2", 4),
    ("expert=2,tensor=2,zero3", 4),
    ("expert=2,context=2", 2),
    ("expert=4,context=2,zero2", 4),
    ("tensor=2,pipeline=2,expert=2,micro-batches=2,schedule=1f1b", 8),
    ("pipeline=2,context=2,expert=2", 4),
    ("expert=2,dgc", 2),
    ("data=2,tensor=2,zero3,offload=all", 4),
    ("tensor=2,pipeline=2,zero3", 8),
    ("expert=2,zero2", 2),
    ("data=2,context=2,central", 4),
    ("tensor=4,tensor-cuts=*.fc1.weight:0+*.fc2.*:replicated", 8),
]

# What is built by itself, and not with a cut model.
NOT_TOGETHER = [
    ("tensor=2,reduction=sum", "reduction=sum", "reduction=mean"),
    ("tensor=2,qadam", "compressed=momentum", "compressed=gradient"),
    ("tensor=2,compile=true", "compile=true", "compile=false"),
]
NOT_WITH_EXPERTS = [
    ("expert=2,reduction=sum", "reduction=sum", "reduction=mean"),
]
NOT_WITH_CONTEXT = [
    ("context=2,compile=true", "compile=true", "compile=false"),
]
NOT_WITH_STAGES = [
    ("pipeline=2,compile=true", "compile=true", "compile=false"),
]


@pytest.mark.parametrize("cut", ["tensor=2", "pipeline=2", "tensor=2,pipeline=2", "context=2"])
def test_what_is_encoded_goes_to_ranks_with_other_rows(cut: str):
    (said,) = validate(expand(f"{cut},onebit"), 4 if "," in cut else 2)
    assert said == (
        f"compressor=onebit encodes gradients between ranks that have other rows of the batch, and {cut} "
        f"with data=1 has no such ranks; nearest legal: data=2,{cut},compressor=onebit [R221]"
    )
    assert validate(expand(f"data=1,{cut},onebit")) == [said]
    assert validate(expand(f"data=2,{cut},onebit")) == validate(expand(f"{cut},onebit")) == []
    assert validate(expand(f"{cut},onebit"), 8) == validate(expand(f"{cut},onebit"), 1) == []


def test_parameters_and_tables_are_shared_with_ranks_that_have_other_rows():
    assert validate(expand("tensor=2,local-sgd"), 2) == [
        "update=local averages parameters between ranks that have other rows of the batch, and tensor=2 with "
        "data=1 has no such ranks; nearest legal: data=2,tensor=2,update=local [R221]"
    ]
    assert validate(expand("tensor=2,hybrid"), 2) == [
        "sparse=sharded spreads table rows over ranks that have other rows of the batch, and tensor=2 "
        "with data=1 has no such ranks; nearest legal: data=2,tensor=2,sparse=sharded [R221]"
    ]
    for text in (
        "tensor=2,local-sgd",
        "context=2,async-average",
        "tensor=2,hybrid",
        "pipeline=2,decentralized",
        "pipeline=2,hybrid",
    ):
        assert validate(expand(text), 4) == []


def test_servers_have_no_rows_of_a_cut_model():
    assert validate(expand("data=2,tensor=2,hybrid,servers=1"), 4) == [
        "tensor=2 with servers=1 is not available in this version; nearest legal: tensor=2 [R220]"
    ]


def test_experts_are_in_step():
    assert validate(expand("expert=2,local-sgd"), 2) == [
        "update=local lets ranks train by themselves, but under expert=2 they exchange tokens in each step; "
        "nearest legal: expert=2,update=sync [R255]"
    ]


@pytest.mark.parametrize(("text", "ranks"), AVAILABLE_ON)
def test_what_is_built_on_so_many_ranks(text: str, ranks: int):
    assert validate(expand(text), ranks) == []


@pytest.mark.parametrize(("text", "item", "legal"), NOT_TOGETHER)
def test_what_is_not_built_with_a_cut_model_is_refused(text: str, item: str, legal: str):
    refused = f"tensor=2 with {item} is not available in this version; nearest legal: tensor=2,{legal}"
    assert f"{refused} [R220]" in validate(expand(text))


@pytest.mark.parametrize(("text", "item", "legal"), NOT_WITH_STAGES)
def test_what_is_not_built_with_stages_is_refused(text: str, item: str, legal: str):
    refused = f"pipeline=2 with {item} is not available in this version; nearest legal: pipeline=2,{legal}"
    assert f"{refused} [R220]" in validate(expand(text))


@pytest.mark.parametrize(("text", "item", "legal"), NOT_WITH_EXPERTS)
def test_what_is_not_built_with_spread_experts_is_refused(text: str, item: str, legal: str):
    refused = f"expert=2 with {item} is not available in this version; nearest legal: expert=2,{legal}"
    assert f"{refused} [R220]" in validate(expand(text))


@pytest.mark.parametrize(("text", "item", "legal"), NOT_WITH_CONTEXT)
def test_what_is_not_built_with_cut_sequences_is_refused(text: str, item: str, legal: str):
    refused = f"context=2 with {item} is not available in this version; nearest legal: context=2,{legal}"
    assert f"{refused} [R220]" in validate(expand(text))


# Keys that only refine a value which is not built: alone they contradict the default plan.
CONTRADICTIONS = [
    ("every=4", "every=4 and update=sync", "update=local,every=4"),
    ("adaptive=true", "adaptive=true and update=sync", "update=local,adaptive=true"),
    ("peers=all", "peers=all and update=sync", "update=decentralized,peers=all"),
    ("staleness=2", "staleness=2 and update=sync", "state=server,update=bounded,staleness=2"),
    ("optimizer-on=server", "optimizer-on=server and state=replicated", "state=server,optimizer-on=server"),
    ("error-feedback=true", "error-feedback=true and compressor=none", "compressor=topk,error-feedback=true"),
    ("compressed=momentum", "compressed=momentum and compressor=none", "compressor=int8,compressed=momentum"),
    ("schedule=gpipe", "schedule=gpipe and pipeline=1", "pipeline=2,schedule=gpipe"),
    (
        "pipeline=2,schedule=zero-bubble,recompute=full",
        "schedule=zero-bubble and recompute=full",
        "pipeline=2,schedule=1f1b,recompute=full",
    ),
    ("compile=true,recompute=full", "compile=true and recompute=full", "compile=false,recompute=full"),
    ("update=async", "update=async and state=replicated", "state=server,update=async"),
    ("update=bounded,staleness=1", "update=bounded and state=replicated", "state=server,update=bounded"),
    ("update=geo,every=9", "update=geo and state=replicated", "state=server,update=geo"),
    ("zero3,update=local,every=8", "update=local and state=zero3", "state=replicated,update=local"),
    ("ps,update=local,every=8", "update=local and state=server", "state=replicated,update=local"),
    (
        "central,update=async-average",
        "update=async-average and state=central",
        "state=replicated,update=async",
    ),
    ("zero1,decentralized", "update=decentralized and state=zero1", "state=replicated,update=decentralized"),
    ("local-sgd,staleness=3", "staleness=3 and update=local", "state=server,update=bounded,staleness=3"),
    ("local-sgd,update=sync", "every=8 and update=sync", "update=local,every=8"),
    ("geo,optimizer-on=server", "optimizer-on=server and update=geo", "update=geo,optimizer-on=worker"),
    ("geo,adaptive=true", "adaptive=true and update=geo", "update=local,adaptive=true"),
    ("servers=2", "servers=2 and state=replicated,sparse=replicated", "state=server,servers=2"),
    ("zero3,servers=2", "servers=2 and state=zero3,sparse=replicated", "state=server,servers=2"),
    ("ps,precision=fp16", "precision=fp16 and state=server", "precision=bf16,state=server"),
    (
        "ps-async,micro-batches=2",
        "update=async and micro-batches=2",
        "state=server,update=sync,micro-batches=2",
    ),
    (
        "ps-async,optimizer-on=worker",
        "optimizer-on=worker and update=async",
        "state=server,update=async,optimizer-on=server",
    ),
    ("offload=all", "offload=all and state=replicated", "state=zero3,offload=all"),
    ("zero1,offload=all", "offload=all and state=zero1", "state=zero3,offload=all"),
    ("zero2,offload=all", "offload=all and state=zero2", "state=zero3,offload=all"),
    ("density=0.1", "density=0.1 and compressor=none", "compressor=topk,density=0.1"),
    ("twobit,density=0.1", "density=0.1 and compressor=twobit", "compressor=topk,density=0.1"),
    ("threshold=2", "threshold=2 and compressor=none", "compressor=twobit,threshold=2"),
    ("onebit,low-rank=2", "low-rank=2 and compressor=onebit", "compressor=powersgd,low-rank=2"),
    ("onebit,warm-up=2", "warm-up=2 and compressor=onebit,update=sync", "update=local,every=8,warm-up=2"),
    ("decentralized,warm-up=2", "warm-up=2 and compressor=none,update=decentralized", "update=local,every=8"),
    ("onebit,reduction=sum", "reduction=sum and compressor=onebit", "reduction=sum,compressor=none"),
    ("local-sgd,reduction=adasum", "reduction=adasum and update=local", "reduction=adasum,update=sync"),
    ("reduction=sum,predivide=2", "predivide=2 and reduction=sum", "predivide=2,reduction=mean"),
    ("onebit,predivide=2", "predivide=2 and compressor=onebit", "predivide=2,compressor=none"),
    ("onebit,compressed=momentum", "compressed=momentum and compressor=onebit", "compressor=int8"),
    ("qadam,error-feedback=true", "error-feedback=true and compressed=momentum", "error-feedback=false"),
    ("zero3,onebit", "compressor=onebit and state=zero3", "compressor=onebit,state=replicated"),
    ("ps,reduction=sum", "reduction=sum and state=server", "reduction=sum,state=replicated"),
    ("hybrid,dgc", "compressor=topk and sparse=sharded", "compressor=topk,sparse=replicated"),
    ("dgc,precision=fp16", "compressor=topk and precision=fp16", "compressor=topk,precision=bf16"),
    ("dgc,algorithm=ring", "algorithm=ring and compressor=topk", "compressor=topk,algorithm=auto"),
    ("local-sgd,precision=fp16", "update=local and precision=fp16", "update=local,precision=bf16"),
    ("hybrid,local-sgd", "update=local and sparse=sharded", "update=local,sparse=replicated"),
    ("local-sgd,micro-batches=2", "update=local and micro-batches=2", "state=replicated,update=sync"),
    (
        "decentralized-lowprec,error-feedback=true",
        "error-feedback=true and update=decentralized",
        "update=decentralized,error-feedback=false",
    ),
    (
        "decentralized-lowprec,peers=all",
        "peers=all and compressor=int8",
        "peers=shift-one,compressor=int8",
    ),
    (
        "decentralized,peers=shift-one,algorithm=ring",
        "algorithm=ring and peers=shift-one",
        "peers=shift-one,algorithm=auto",
    ),
    ("central,sparse=sharded", "sparse=sharded and state=central", "state=replicated,sparse=sharded"),
]

# What nothing asks for where servers have the state, and with which key it does nothing.
WITHOUT_EFFECT = [
    ("ps,algorithm=ring", "state=server"),
    ("hierarchical,state=server", "state=server"),
    ("geo,algorithm=tree", "state=server"),
    ("ps,sparse=sharded", "state=server"),
    ("ps,offload=optimizer", "state=server"),
    ("ps-async,offload=optimizer", "state=server"),
    ("geo,offload=optimizer", "update=geo"),
    ("ps-async,bucket-mb=4", "update=async"),
    ("ps-bounded,rng=global", "update=bounded"),
    ("geo,batch-dim=1", "update=geo"),
    ("ps-async,loading=full", "update=async"),
    ("local-sgd,bucket-mb=4", "update=local"),
    ("decentralized,rng=global", "update=decentralized"),
    ("async-average,batch-dim=1", "update=async-average"),
    ("async-average,loading=full", "update=async-average"),
]


@pytest.mark.parametrize(("text", "other"), WITHOUT_EFFECT)
def test_what_does_nothing_is_refused(text: str, other: str):
    (error,) = validate(expand(text))
    item = text.rpartition(",")[2].replace("state=server", "algorithm=hierarchical")
    assert error.startswith(f"{item} has no effect with {other}: ")
    remedy = lift(error)[1].partition("nearest legal: ")[2]
    items = dict(each.split("=") for each in f"{expand(text)},{remedy}".split(","))
    assert validate(expand(",".join(f"{name}={value}" for name, value in items.items()))) == []


@pytest.mark.parametrize("text", AVAILABLE)
@pytest.mark.parametrize("ranks", [None, 1, 2, 8])
def test_what_is_built_has_no_errors(text: str, ranks: int | None):
    assert validate(expand(text), ranks) == []
    check(expand(text), ranks)


def test_every_preset_is_built():
    assert sorted(BUILT_PRESETS) == sorted(PRESETS)


@pytest.mark.parametrize(("text", "settings", "nearest"), CONTRADICTIONS)
def test_a_contradiction_names_both_settings_and_the_nearest_legal_one(
    text: str, settings: str, nearest: str
):
    errors = validate(expand(text))
    assert any(
        error.startswith(f"{settings} contradict each other; nearest legal: {nearest}") for error in errors
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("update=local", "update=local needs every=K or adaptive=true; nearest legal: update=local,every=8"),
        ("update=geo,state=server", "update=geo needs every=K; nearest legal: update=geo,every=100"),
        (
            "update=decentralized",
            "update=decentralized needs peers; nearest legal: update=decentralized,peers=all",
        ),
        ("ps,update=bounded", "update=bounded needs staleness=S; nearest legal: update=bounded,staleness=4"),
    ],
)
def test_a_value_that_needs_another_says_which(text: str, message: str):
    assert f"{message} [R213]" in validate(expand(text))


def test_offload_of_replicated_state_is_for_one_rank():
    plan = expand("offload=optimizer")
    assert validate(plan, 1, "cuda") == validate(plan) == []
    assert validate(plan, 3, "cuda") == [
        "offload=optimizer and state=replicated on 3 ranks contradict each other; nearest legal: "
        "state=zero1,offload=optimizer [R210]"
    ]


@pytest.mark.parametrize("text", ["zero1,offload=optimizer", "zero3,offload=all"])
@pytest.mark.parametrize("ranks", [None, 1, 2])
def test_offload_needs_a_device(text: str, ranks: int | None):
    item = text.partition(",")[2]
    assert validate(expand(text), ranks, "cuda") == []
    assert validate(expand(text), ranks, "cpu") == [
        f"{item} moves state from a CUDA device to host memory, and these ranks are on the CPU: their state "
        f"is there already; leave {item} out [R212]"
    ]
    with pytest.raises(PlanError, match="are on the CPU"):
        read_plan(text, ranks=ranks, device="cpu")
    assert validate(expand("zero3"), ranks, "cpu") == []


@pytest.mark.parametrize("text", ["offload=all", "offload=optimizer", "zero2,offload=all"])
def test_on_a_cpu_no_other_plan_with_offload_is_named(text: str):
    (error,) = validate(expand(text), 2, "cpu")
    assert lift(error)[1].endswith(f"leave {expand(text).item('offload')} out")


@pytest.mark.parametrize("text", ["update=local,adaptive=true", "local-sgd,adaptive=true"])
def test_adaptive_local_steps_may_have_a_first_interval_or_none(text: str):
    assert [error for error in validate(expand(text)) if "needs" in error or "contradict" in error] == []


@pytest.mark.parametrize(("text", "settings"), [case[:2] for case in CONTRADICTIONS])
def test_the_nearest_legal_setting_mends_the_contradiction(text: str, settings: str):
    plan = expand(text)
    error = next(error for error in validate(plan) if error.startswith(settings))
    remedy = lift(error)[1].partition("nearest legal: ")[2]
    items = dict(item.split("=") for item in f"{plan},{remedy}".split(","))
    mended = expand(",".join(f"{name}={value}" for name, value in items.items()))
    assert [error for error in validate(mended) if error.startswith(settings)] == []


@pytest.mark.parametrize(
    ("text", "ranks", "message"),
    [
        ("data=3", 4, "data=3 and 4 ranks contradict each other; nearest legal: data=4, or data=auto"),
        ("data=2,tensor=2", 8, "data=2,tensor=2 and 8 ranks contradict each other; nearest legal: data=4"),
        ("tensor=3", 4, "tensor=3 and 4 ranks contradict each other; nearest legal: 3 ranks"),
        ("tensor=3", 5, "tensor=3 and 5 ranks contradict each other; nearest legal: 6 ranks"),
        (
            "tensor=2,pipeline=4",
            2,
            "tensor=2,pipeline=4 and 2 ranks contradict each other; nearest legal: 8 ranks",
        ),
        (
            "reduction=adasum",
            6,
            "reduction=adasum and 6 ranks (no power of two) contradict each other; nearest legal: "
            "reduction=adasum on 4 ranks",
        ),
        (
            "decentralized,peers=shift-one",
            3,
            "peers=shift-one and 3 ranks (an odd number) contradict each other; nearest legal: "
            "peers=shift-one on 4",
        ),
        ("expert=3", 4, "expert=3 and data=4 contradict each other; nearest legal: expert=2"),
        ("expert=4,data=2", None, "expert=4 and data=2 contradict each other; nearest legal: expert=2"),
        (
            "expert=4,data=1,context=2",
            None,
            "expert=4 and data=1,context=2 contradict each other; nearest legal: expert=2",
        ),
    ],
)
def test_degrees_fit_the_ranks(text: str, ranks: int | None, message: str):
    assert any(error.startswith(message) for error in validate(expand(text), ranks))


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("data=4", 4),
        ("data=4", None),
        ("tensor=2,pipeline=2", 8),
        ("context=2,data=2", 4),
        ("expert=2", 4),
        ("expert=4,context=2", 4),
        ("expert=8,data=4", 1),
        ("tensor=2,data=3", 1),
    ],
)
def test_fitting_degrees_and_one_rank_raise_no_contradiction(text: str, ranks: int | None):
    assert [error for error in validate(expand(text), ranks) if "contradict" in error] == []


def test_all_errors_are_told_at_once():
    plan = expand("zero2,offload=all,tensor=2,every=4,optimizer-on=server,data=3")
    errors = validate(plan, 4)
    assert [error.split(" ")[0] for error in errors] == [
        "every=4",
        "optimizer-on=server",
        "offload=all",
        "data=3,tensor=2",
    ]
    with pytest.raises(PlanError) as caught:
        check(plan, 4)
    assert str(caught.value) == "; ".join(errors)
    assert caught.value.exit_code == 2
