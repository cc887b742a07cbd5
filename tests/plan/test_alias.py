"""Plans by the names that other systems have for them."""

from __future__ import annotations

import pytest

from ronde.errors import PlanError
from ronde.plan import PRESETS, expand
from ronde.plan.alias import ALIASES, KEY_ALIASES, SEVERAL_MEANINGS, plain
from ronde.plan.axes import KEYS
from ronde.plan.grammar import aliases_in


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("fsdp", "zero3"),
        ("FSDP2", "zero3"),
        ("zero-3", "zero3"),
        ("ZeRO_2", "zero2"),
        ("zero-1", "zero1"),
        ("stage3", "zero3"),
        ("zero=2", "zero2"),
        ("deepspeed_stage_3_offload", "zero3,offload=all"),
        ("dp", "ddp"),
        ("horovod", "ddp"),
        ("mirrored", "ddp"),
        ("multi-worker-mirrored", "ddp"),
        ("DataParallel", "central"),
        ("parameter-server", "ps"),
        ("dist_async", "ps-async"),
        ("tp=2", "tensor=2"),
        ("pp=2", "pipeline=2"),
        ("cp=2", "context=2"),
        ("ep=2", "expert=2"),
        ("dp=2", "data=2"),
        ("tensor_parallel_size=2,pp=2", "tensor=2,pipeline=2"),
        ("fsdp,precision=bf16", "zero3,precision=bf16"),
        ("micro_batches=4", "micro-batches=4"),
        ("Bucket_MB=4", "bucket-mb=4"),
    ],
)
def test_a_name_is_taken(typed: str, meant: str) -> None:
    assert expand(typed) == expand(meant)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            "deepspeed",
            "deepspeed has several plans here; write zero1, zero2 or zero3, by the stage of its config",
        ),
        ("megatron", "megatron has several plans here; write tensor=N, with pipeline=N for stages"),
        ("gpipe", "gpipe has several plans here; write pipeline=N,micro-batches=M"),
        ("sp=2", "sp has several plans here; write context=N"),
        ("MoE=2", "MoE has several plans here; write expert=N"),
        ("zero1,fsdp", "preset zero1 sets state=zero1 and preset zero3 sets state=zero3; keep one of them"),
        ("tp", "tp is tensor=N here; write how many ways it cuts"),
        ("tp=two", "tensor=two is not a value of tensor"),
        ("tp=2,tensor=3", "tensor=2 and tensor=3 contradict each other"),
        ("dpp", "unknown preset 'dpp' (did you mean ddp?)"),
    ],
)
def test_a_name_is_answered(typed: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        expand(typed)
    assert message in str(caught.value)


def test_what_names_stand_for_is_said() -> None:
    assert aliases_in("fsdp,tp=2,precision=bf16") == ("fsdp is zero3", "tp=2 is tensor=2")
    assert aliases_in("zero3,tensor=2,micro_batches=2") == ()


def test_every_alias_is_a_plan_and_hides_no_word_of_ours() -> None:
    for name, items in ALIASES.items():
        expand(items)
        assert name == plain(name)
        assert name not in PRESETS
    for name, key in KEY_ALIASES.items():
        assert name not in KEYS
        assert key in KEYS
    assert not (ALIASES.keys() | PRESETS.keys()) & SEVERAL_MEANINGS.keys()
