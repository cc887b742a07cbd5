"""Mixtures as people write them: spread or not, the numbers are one device's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from codes import without_codes
from parallel.cut_models import Ranks
from parallel.mixtures import FORMS, NOT_SPREAD, form
from parallel.test_experts_ranks import D, train
from ronde.patching.patches import Patches
from ronde.testing.run_ranks import Rank

_SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 12,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0,
    "num_experts_per_tok": 2, "experts_implementation": "eager",  # another way of torch's knows no double
}  # fmt: skip
_DEEPSEEK = {
    "n_routed_experts": 6, "n_shared_experts": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 1,
    "n_group": 3, "topk_group": 2, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4, "v_head_dim": 4, "num_key_value_heads": 4,
}  # fmt: skip
_SWITCH = {
    "num_experts": 6, "d_model": 16, "d_ff": 24, "d_kv": 4, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "expert_capacity": 2,
    "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip
HUGGING_FACE: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 6},
    "Qwen2Moe": {"num_experts": 6, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
    "Qwen3Moe": {"num_experts": 6, "moe_intermediate_size": 8, "head_dim": 4},
    "DeepseekV2": _DEEPSEEK | {"topk_method": "group_limited_greedy"},
    "DeepseekV3": _DEEPSEEK,
    "Olmoe": {"num_experts": 6},
    "GptOss": {"num_local_experts": 6, "head_dim": 4},
    "SwitchTransformers": _SWITCH,
}

SAMPLE = {("Masks", 2)}


def mixture_of(kind: str, **sizes: Any) -> nn.Module:
    """Make a model of Hugging Face's from a small configuration."""
    transformers: Any = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(**_SIZES | HUGGING_FACE[kind] | sizes)
    head = "ForConditionalGeneration" if kind == "SwitchTransformers" else "ForCausalLM"
    return getattr(transformers, f"{kind}{head}")(config)


@contextmanager
def in_double() -> Iterator[None]:
    """Let routers compute in double precision; by the rounding of single precision numbers would differ."""
    patches = Patches()
    for owner, name, value in (
        (torch, "float32", D),
        (torch, "float", D),
        (torch.Tensor, "float", torch.Tensor.double),
    ):
        patches.set(owner, name, value)
    try:
        yield
    finally:
        patches.restore()


def _of_hugging_face(kind: str) -> list[torch.Tensor]:
    def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        targets = {"labels": ids} if kind == "SwitchTransformers" else {"use_cache": False}
        logits = model(input_ids=ids, **targets).logits
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())

    pytest.importorskip("transformers")  # which binds dtypes at import
    with in_double():
        return train(lambda: mixture_of(kind), loss_of)


def _trained(name: str, rows: int = 6) -> list[torch.Tensor]:
    if name in FORMS:
        return train(lambda: form(name), lambda model, ids: model(ids), rows)
    return _of_hugging_face(name)


def _on_rank(rank: Rank, plan: str, name: str) -> tuple[list[torch.Tensor], list[str]]:
    with rank.session(plan) as session:
        return _trained(name), without_codes(session.strategies.notes())


@pytest.mark.parametrize(
    ("name", "world"),
    [
        pytest.param(name, world, marks=() if (name, world) in SAMPLE else pytest.mark.soak)
        for name in (*FORMS, *HUGGING_FACE)
        for world in (2, 3)
    ],
)
def test_a_mixture_as_people_write_it(ranks: Ranks, name: str, world: int):
    item = f"expert={world}"
    expected = _trained(name)
    for found, notes in ranks(world, _on_rank, item, name):
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
        why = NOT_SPREAD.get(name)
        said = f"{item} does not spread the experts of {name}: {why}"
        assert notes == [] if why is None else said in notes


def test_another_length_of_sequences_is_no_obstacle(two: Ranks):
    for losses, notes in two(_two_lengths, "expert=2"):
        assert notes == []
        torch.testing.assert_close(losses, _losses_of_two_lengths(), rtol=1e-10, atol=1e-10)


def _losses_of_two_lengths() -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = form("Stacked").to(D)
    draw = torch.Generator().manual_seed(2)
    return [model(torch.randint(0, 12, (6, length), generator=draw)).detach().clone() for length in (3, 5, 2)]


def _two_lengths(rank: Rank, plan: str) -> tuple[list[torch.Tensor], list[str]]:
    with rank.session(plan) as session:
        return _losses_of_two_lengths(), session.strategies.notes()
