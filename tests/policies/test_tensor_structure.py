"""Which matrices are cut, found from the structure of models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ronde.policies.tensor_structure import placements


def cuts(model: nn.Module, ranks: int = 2, **override: str) -> dict[str, str]:
    """Dimension (and matrices) by name; "" for what stays whole."""
    found = placements(model, ranks, {name.replace("__", "."): way for name, way in override.items()})
    return {
        each.name: "" if each.cut is None else f"{each.cut.dim}/{each.cut.fused}".removesuffix("/1")
        for each in found
    }


def test_two_layers_with_element_wise_functions_between_are_a_pair():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(), nn.Linear(8, 4), nn.Linear(4, 6))
    found = cuts(model)
    assert [found[name] for name in ("0.weight", "0.bias", "3.weight", "3.bias")] == ["0", "0", "1", ""]
    assert found["4.weight"] == ""


def test_a_norm_between_two_layers_parts_them():
    assert not any(cuts(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4))).values())


def test_a_subclass_of_linear_is_a_matrix_where_it_runs_as_one():
    class Built(nn.Linear):
        """As torchtitan's, which is built from its configuration."""

    class Scaled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) / self.in_features

    def found(kind: type[nn.Linear]) -> dict[str, str]:
        return cuts(nn.Sequential(kind(4, 8, bias=False), nn.ReLU(), kind(8, 4, bias=False)))

    assert found(Built) == {"0.weight": "0", "2.weight": "1"}
    assert not any(found(Scaled).values())


def test_attention_is_cut_by_heads_and_only_where_they_divide():
    layer = nn.TransformerDecoderLayer(12, 4, 16)
    found = cuts(layer)
    assert found["self_attn.in_proj_weight"] == found["multihead_attn.in_proj_bias"] == "0/3"
    assert found["self_attn.out_proj.weight"] == found["linear2.weight"] == "1"
    assert found["linear1.bias"] == "0"
    three = placements(nn.MultiheadAttention(12, 3), 2)
    assert all(each.cut is None and each.why == "3 heads do not divide by 2" for each in three)


class Experts(nn.Module):
    """The parameters of all experts, as Hugging Face lays and describes them."""

    def __init__(
        self, *, inner: int = 6, transposed: bool = False, joined: bool = True, normed: bool = False
    ):
        super().__init__()
        self.has_gate, self.has_bias, self.is_transposed = True, True, transposed
        self.is_concatenated, self.has_post_expert_norm = joined, normed
        first, second = (3, 2 * inner, 4), (3, 4, inner)
        turned = (lambda shape: (shape[0], shape[2], shape[1])) if transposed else tuple
        self.gate_up_proj = nn.Parameter(torch.zeros(turned(first)))
        self.down_proj = nn.Parameter(torch.zeros(turned(second)))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(3, 2 * inner))
        self.down_proj_bias = nn.Parameter(torch.zeros(3, 4))


def test_of_experts_in_one_module_the_features_of_each_are_cut():
    names = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")
    assert cuts(Experts()) == dict(zip(names, ("1/2", "2", "1/2", "")))
    assert cuts(Experts(transposed=True, joined=False)) == dict(zip(names, ("2", "1", "1", "")))
    assert not any(cuts(Experts(inner=5)).values())
    assert not any(cuts(Experts(normed=True)).values())


def test_a_layer_with_as_many_outputs_as_there_are_words_is_cut_by_classes():
    found = cuts(nn.Sequential(nn.Embedding(12, 4), nn.LayerNorm(4), nn.Linear(4, 12)))
    assert (found["0.weight"], found["2.weight"], found["2.bias"]) == ("0", "0", "0")


class Llama(nn.Module):
    def __init__(self, heads: int, heads_of_keys: int) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads = heads, heads_of_keys
        self.q_proj = nn.Linear(16, 16, bias=False)
        self.k_proj = nn.Linear(16, 4 * heads_of_keys, bias=False)
        self.v_proj = nn.Linear(16, 4 * heads_of_keys, bias=False)
        self.o_proj = nn.Linear(16, 16, bias=False)


def test_grouped_queries_are_cut_where_the_heads_of_keys_divide_too():
    assert cuts(Llama(4, 2)) == dict(
        zip(("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"), "0001")
    )
    assert not any(cuts(Llama(4, 1)).values())


@pytest.mark.parametrize(("first", "second"), [("qkv", "out"), ("Wqkv", "wo"), ("query_key_value", "o_proj")])
def test_any_name_of_queries_comes_with_any_name_of_outputs(first: str, second: str) -> None:
    model = nn.Module()
    model.add_module(first, nn.Linear(8, 24))
    model.add_module(second, nn.Linear(8, 8))
    wanted = {f"{first}.weight": "0/3", f"{first}.bias": "0/3", f"{second}.weight": "1", f"{second}.bias": ""}
    assert cuts(model) == wanted


def test_a_tied_embedding_is_cut_once_by_rows():
    model = nn.Module()
    model.wte, model.lm_head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    model.lm_head.weight = model.wte.weight
    assert cuts(model) == {"wte.weight": "0"}
    assert cuts(model, ranks=3) == {"wte.weight": ""}


def test_a_table_that_does_more_than_look_up_stays_whole():
    model = nn.Sequential(nn.Embedding(8, 4, max_norm=1.0), nn.Embedding(8, 4))
    assert cuts(model) == {"0.weight": "", "1.weight": "0"}


def test_the_plan_has_the_last_word():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    found = placements(model, 2, {"2.*": "replicated", "0.weight": "1"})
    assert [(each.name, each.cut and each.cut.dim, each.why) for each in found] == [
        ("0.weight", 1, "1, as the plan says"),
        ("0.bias", 0, "outputs, in Sequential"),
        ("2.weight", None, "replicated, as the plan says"),
        ("2.bias", None, "replicated, as the plan says"),
    ]


def test_what_cannot_be_cut_says_why():
    model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 4))
    model[2].weight.register_hook(lambda gradient: gradient)
    why = {each.name: each.why for each in placements(model, 3)}
    assert placements(model, 2)[0].why == "its 9 entries along dimension 0 do not divide by 2"
    assert why["2.weight"] == "it has hooks, which see whole gradients"


@pytest.mark.parametrize("name", ["GPT2", "Llama", "Bert"])
def test_models_of_hugging_face_are_recognised(name: str):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    if name == "GPT2":
        config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=64)
        model = transformers.GPT2LMHeadModel(config)
        expected = {
            "attn.c_attn.weight": "1/3",
            "attn.c_proj.weight": "0",
            "mlp.c_fc.bias": "0",
            "wte.weight": "0",
        }
    elif name == "Llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes))
        expected = {
            "k_proj.weight": "0",
            "o_proj.weight": "1",
            "gate_proj.weight": "0",
            "down_proj.weight": "1",
        }
    else:
        model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, **sizes))
        expected = {
            "self.query.weight": "0",
            "attention.output.dense.weight": "1",
            "intermediate.dense.bias": "0",
        }
    found = cuts(model)
    for end, cut in expected.items():
        assert [way for full, way in found.items() if full.endswith(end)] == [cut], end
    assert isinstance(model, torch.nn.Module)
