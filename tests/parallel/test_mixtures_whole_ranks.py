"""Mixtures whose experts all ranks have, as one operation of models that are cut otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from parallel.cut_models import Ranks
from parallel.test_experts_beside_ranks import Attending, Summed, trained
from parallel.test_experts_ranks import Fused, Listed
from ronde.testing.run_ranks import Rank

SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 20, "use_cache": False,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                 "shared_expert_intermediate_size": 12, "norm_topk_prob": True},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "head_dim": 4},
    "DeepseekV2": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                   "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": None, "kv_lora_rank": 8,
                   "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "num_key_value_heads": 4},
    "DeepseekV3": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_group": 2,
                   "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8,
                   "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "num_key_value_heads": 4},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 4, "sliding_window": 8},
}  # fmt: skip


def hugging_face(kind: str, how: str, length: int = 7, balance: bool = False) -> list[torch.Tensor]:
    transformers: Any = pytest.importorskip("transformers")
    sizes = {**SIZES, **KINDS[kind], "attn_implementation": "eager", "experts_implementation": how}
    if balance:
        sizes |= {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    torch.manual_seed(1)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
    model = model.to(torch.float32 if how == "grouped_mm" else torch.float64)  # which knows no doubles
    draw = torch.Generator().manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    told: list[torch.Tensor] = []
    for _ in range(4):
        ids = torch.randint(0, 20, (6, length), generator=draw)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        told += [nn.utils.clip_grad_norm_(model.parameters(), 0.5).clone(), loss.detach().clone()]
        optimizer.step()
    model.eval()
    with torch.no_grad():
        told.append(model(input_ids=ids, labels=ids).loss.clone())
    return told + [value.clone() for value in model.state_dict().values()]


def on_ranks(rank: Rank, plan: str, work: Callable[..., Any], *args: Any) -> tuple[Any, list[str]]:
    with rank.session(plan) as session:
        return work(*args), session.strategies.notes()


def compare(
    ranks: Ranks, plan: str, work: Callable[..., Any], *args: Any, tolerance: float = 1e-10, said: str = ""
) -> None:
    expected = work(*args)
    for found, notes in ranks(on_ranks, plan, work, *args):
        assert len(notes) == bool(said)
        assert all(said in each for each in notes)
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


# Routers compute in single precision, in which a difference of doubles may round another way.
ROUNDING = 1e-6


@pytest.mark.parametrize("plan", ["tensor=2", "context=2", "pipeline=2"])
def test_a_model_with_a_mixture_is_cut(two: Ranks, plan: str) -> None:
    compare(two, plan, hugging_face, "Mixtral", "eager", tolerance=ROUNDING)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["tensor=2", "context=2", "pipeline=2"])
@pytest.mark.parametrize("kind", [each for each in KINDS if each != "Mixtral"])
def test_models_of_hugging_face(two: Ranks, plan: str, kind: str) -> None:
    compare(two, plan, hugging_face, kind, "eager", tolerance=ROUNDING)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["tensor=2", "context=2", "pipeline=2"])
@pytest.mark.parametrize("how", ["grouped_mm", "batched_mm"])
def test_experts_are_called_in_other_ways(two: Ranks, plan: str, how: str) -> None:
    compare(two, plan, hugging_face, "Qwen2Moe", how, tolerance=1e-3 if how == "grouped_mm" else ROUNDING)


@pytest.mark.soak
@pytest.mark.parametrize(("plan", "said"), [("tensor=2", ""), ("context=2", "context=2 cuts nothing")])
def test_what_balances_experts_is_of_all_tokens(two: Ranks, plan: str, said: str) -> None:
    """Hooks record what routers return, and see the whole batch: the model runs in parts."""
    compare(two, plan, hugging_face, "Mixtral", "eager", 7, True, tolerance=ROUNDING, said=said)


@pytest.mark.parametrize(
    "plan",
    [
        "data=2,context=2,zero3",
        *(
            pytest.param(plan, marks=pytest.mark.soak)
            for plan in (
                "tensor=2,context=2",
                "data=2,tensor=2",
                "tensor=2,pipeline=2",
                "pipeline=2,context=2",
                "tensor=2,context=2,sequence-parallel=on",
                "data=2,tensor=2,recompute=full",
            )
        ),
    ],
)
def test_a_model_with_a_mixture_is_cut_by_several_axes(four: Ranks, plan: str) -> None:
    compare(four, plan, hugging_face, "Mixtral", "eager", tolerance=ROUNDING)


@pytest.mark.parametrize("kind", [Listed, pytest.param(Fused, marks=pytest.mark.soak)])
@pytest.mark.parametrize("rows", [2, pytest.param(6, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "plan",
    [
        "context=2",
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("context=2,zero3", "pipeline=2")),
    ],
)
def test_a_rank_may_have_no_tokens_for_an_expert(
    two: Ranks, plan: str, kind: type[nn.Module], rows: int
) -> None:
    compare(two, plan, trained, Attending, kind, rows)


def refused(rank: Rank) -> str:
    with rank.session("context=2"):
        try:
            trained(Attending, Summed)
        except Exception as error:
            return str(error)
    return ""


@pytest.mark.soak
def test_a_mixture_that_looks_at_its_sequence_is_refused(two: Ranks) -> None:
    said: Any = two(refused)
    assert all(
        "in Summed the output of a token depends on other tokens of its sequence" in each for each in said
    )
