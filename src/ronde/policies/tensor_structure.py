"""Placement of a model's matrices over a tensor group, found from its structure.

Of two matrices with element-wise functions or attention between them the first is cut along its outputs, the
second along its inputs, so the only collective follows the second (Shoeybi et al. 2019, "Megatron-LM"). The
cut changes speed and memory, never results: between matrices ranks hold parts of activations, and any
operation without a rule for parts gathers them. So a structure may be guessed by the names that models use.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ronde.policies.expert_features import feature_cuts
from ronde.rowwise.compiled import is_compiled
from ronde.shards.dim_cut import DimCut

__all__ = ["ParameterPlacement", "placements"]

# Names of layers within one module: the first matrices, and the second one after them.
_FEED_FORWARD = (
    ("gate_proj up_proj", "down_proj"),
    ("w1 w3", "w2"),
    ("wi_0 wi_1", "wo"),
    ("wi", "wo"),
    ("up_proj", "down_proj"),
    ("c_fc", "c_proj"),
    ("fc_in", "fc_out"),
    ("fc1", "fc2"),
    ("lin1", "lin2"),
    ("linear1", "linear2"),
    ("linear_1", "linear_2"),
    ("dense_h_to_4h", "dense_4h_to_h"),
)
# In attention any name of the first may come with any of the second.
_QUERIES = (
    "q_proj k_proj v_proj", "wq wk wv", "q k v", "to_q to_k to_v", "q_lin k_lin v_lin", "query key value",
    "query_key_value", "c_attn", "qkv", "qkv_proj", "in_proj", "to_qkv", "Wqkv",
)  # fmt: skip
_OUTPUTS = ("o_proj", "out_proj", "c_proj", "proj", "dense", "out", "to_out", "out_lin", "wo", "o")
_PAIRS: tuple[tuple[tuple[str, ...], str], ...] = tuple(
    (tuple(first.split()), second)
    for first, second in (*_FEED_FORWARD, *itertools.product(_QUERIES, _OUTPUTS))
)
# Layers whose output is queries, keys and values in sequence.
_FUSED = {"c_attn": 3, "qkv": 3, "qkv_proj": 3, "in_proj": 3, "to_qkv": 3, "Wqkv": 3}
# Pairs across modules: BERT's self-attention and its feed-forward part have their second matrix elsewhere.
_DISTANT = (
    (("self.query", "self.key", "self.value"), "output.dense"),
    (("attention.query", "attention.key", "attention.value"), "output.dense"),
    (("intermediate.dense",), "output.dense"),
)
_HEADS = ("num_heads", "n_head", "n_heads", "nhead", "num_attention_heads", "heads")
_HEADS_OF_KEYS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")
_OUTPUT = ("lm_head", "embed_out")
# Modules allowed between two matrices of a Sequential.
_ELEMENTWISE = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.ReLU6, nn.Hardswish, nn.Mish,
    nn.Softplus, nn.Dropout, nn.Identity,
)  # fmt: skip
# Tables with less than this share of a model stay whole.
_LEAST_SHARE = 64


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterPlacement:
    """Placement of one parameter.

    Attributes:
        name: qualified name in the model.
        cut: cut over the tensor group; None for a parameter that every rank has whole.
        why: reason in a few words.
    """

    name: str
    parameter: torch.Tensor
    cut: DimCut | None
    why: str


class _Plan:
    """Cuts found so far; the first one found for a parameter counts."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.roles: dict[int, tuple[DimCut | None, str]] = {}

    def give(self, parameter: Any, cut: DimCut | None, why: str) -> None:
        if isinstance(parameter, torch.Tensor):
            self.roles.setdefault(id(parameter), (cut, why))

    def column(self, layer: nn.Module, why: str, fused: int = 1) -> None:
        """Cut a layer along its outputs."""
        self.give(getattr(layer, "weight", None), DimCut(_out(layer), self.ranks, fused), why)
        self.give(getattr(layer, "bias", None), DimCut(0, self.ranks, fused), why)

    def row(self, layer: nn.Module, why: str) -> None:
        """Cut a layer along its inputs; the bias is added after the sum."""
        self.give(getattr(layer, "weight", None), DimCut(1 - _out(layer), self.ranks), why)
        self.give(getattr(layer, "bias", None), None, "it is added to the sum over ranks")

    def whole(self, module: nn.Module, why: str) -> None:
        for parameter in module.parameters():
            self.give(parameter, None, why)


def placements(
    model: nn.Module, ranks: int, override: Mapping[str, str] | None = None
) -> list[ParameterPlacement]:
    """Decide the placement of each parameter, each once, in the order of modules.

    Args:
        model: the model, before its first sharded call.
        ranks: size of the tensor group.
        override: the dimension to cut by pattern of parameter names (`*.mlp.fc.weight`): `0`, `1`, or `0/3`
            for three matrices stacked along it; `replicated` keeps the parameter whole. The first match
            counts.
    """
    plan = _Plan(ranks)
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
        _overridden(plan, name, parameter, override or {})
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule) or is_compiled(module):
            plan.whole(module, "its module is compiled")
    _hugging_face(plan, model)
    for module in model.modules():
        _inside(plan, module)
        _experts(plan, module)
    _vocabularies(plan, model)
    found: list[ParameterPlacement] = []
    seen: set[int] = set()
    for parameter in model.parameters():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        cut, why = plan.roles.get(id(parameter), (None, "no structure was recognised"))
        why_not = _why_whole(parameter, cut)
        found.append(
            ParameterPlacement(names[id(parameter)], parameter, None if why_not else cut, why_not or why)
        )
    return found


def _out(layer: nn.Module) -> int:
    """Return the output dimension of a weight; Hugging Face's `Conv1D` has it last."""
    return 1 if type(layer).__name__ == "Conv1D" else 0


def _is_matrix(layer: Any) -> bool:
    is_linear = isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
    if not is_linear and type(layer).__name__ != "Conv1D":
        return False
    weight = layer._parameters.get("weight")
    return weight is not None and not is_lazy(weight) and weight.dim() == 2


def _inside(plan: _Plan, module: nn.Module) -> None:
    if type(module) is nn.MultiheadAttention:
        _attention(plan, module)
    if isinstance(module, nn.Sequential):
        _sequence(plan, list(module))
    for first, second in _PAIRS:
        layers = [getattr(module, name, None) for name in first]
        _pair(plan, module, layers, getattr(module, second, None), _FUSED.get(first[0], 1))
    for first, second in _DISTANT:
        layers = [_at(module, name) for name in first]
        _pair(plan, _owner(module, first), layers, _at(module, second), 1)


def _owner(module: nn.Module, names: Sequence[str]) -> nn.Module:
    """Return the module that has these layers: it knows the number of heads."""
    owner = _at(module, names[0].rpartition(".")[0])
    return owner if isinstance(owner, nn.Module) else module


def _at(module: nn.Module, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None) if isinstance(found, nn.Module) else None
    return found


def _pair(plan: _Plan, owner: nn.Module, first: Sequence[Any], second: Any, fused: int) -> None:
    if not all(map(_is_matrix, [*first, second])):
        return
    problem = _heads(owner, plan.ranks)
    layers = [*first, second]
    if problem:
        for layer in layers:
            plan.whole(layer, problem)
        return
    kind = type(owner).__name__
    outputs, inputs = first[0].weight.shape[_out(first[0])], second.weight.shape[1 - _out(second)]
    if len(first) == 1 and outputs != inputs * fused:
        fused = outputs // inputs if outputs % inputs == 0 else 1
    for layer in first:
        plan.column(layer, f"outputs, in {kind}", fused)
    plan.row(second, f"inputs, in {kind}")


def _heads(owner: nn.Module, ranks: int) -> str:
    """Return why heads do not divide over ranks, or "".

    It is "" also where no heads are known.
    """
    for holder in (owner, getattr(owner, "config", None)):
        for name in (*_HEADS, *_HEADS_OF_KEYS):
            count = getattr(holder, name, None)
            if isinstance(count, int) and not isinstance(count, bool) and count % ranks:
                return f"{count} heads do not divide by {ranks}"
    return ""


def _attention(plan: _Plan, module: nn.MultiheadAttention) -> None:
    special = module.bias_k is not None or module.add_zero_attn
    problem = _heads(module, plan.ranks) or ("it adds a key to the sequence" if special else "")
    if problem:
        plan.whole(module, problem)
        return
    heads = f"heads, in {type(module).__name__}"
    plan.give(module.in_proj_weight, DimCut(0, plan.ranks, 3), heads)
    plan.give(module.in_proj_bias, DimCut(0, plan.ranks, 3), heads)
    for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        plan.give(getattr(module, name), DimCut(0, plan.ranks), heads)
    plan.row(module.out_proj, heads)


def _experts(plan: _Plan, module: nn.Module) -> None:
    """Cut the features of experts in a fused module."""
    for name, cut in feature_cuts(module, plan.ranks).items():
        why = f"features, in {type(module).__name__}" if cut else "each rank adds its share to the sum"
        plan.give(module._parameters[name], cut, why)


def _sequence(plan: _Plan, layers: Sequence[nn.Module]) -> None:
    """Find pairs of matrices with only element-wise functions between, each in one pair."""
    first: nn.Module | None = None
    for layer in layers:
        if _is_matrix(layer):
            if first is None:
                first = layer
            else:
                plan.column(first, "outputs, in Sequential")
                plan.row(layer, "inputs, in Sequential")
                first = None
        elif not isinstance(layer, _ELEMENTWISE):
            first = None


def _vocabularies(plan: _Plan, model: nn.Module) -> None:
    total = sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter))
    tables: set[torch.Size] = set()
    for module in model.modules():
        if type(module) is not nn.Embedding:
            continue
        weight = module.weight
        special = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
        if special or is_lazy(weight) or not isinstance(weight, nn.Parameter):
            plan.give(weight, None, "its look-ups do more than look up")
        elif weight.numel() * _LEAST_SHARE < total:
            plan.give(weight, None, "it is small")
        else:
            plan.give(weight, DimCut(0, plan.ranks), "rows, in Embedding")
            tables.add(weight.shape)
    for name, module in model.named_modules():
        # As many outputs as there are words.
        if _is_matrix(module) and (name.rpartition(".")[2] in _OUTPUT or _rows_of(module) in tables):
            plan.column(module, "classes")


def _rows_of(layer: nn.Module) -> Any:
    """Return the shape of a matrix with its outputs first."""
    shape: Any = layer.weight.shape
    return shape if _out(layer) == 0 else shape[::-1]


def _hugging_face(plan: _Plan, model: nn.Module) -> None:
    """Follow the tensor-parallel plan that a Hugging Face model declares."""
    for module in model.modules():
        told = getattr(module, "_tp_plan", None)
        if not isinstance(told, dict) or not told:
            continue
        for name, layer in module.named_modules():
            if not _is_matrix(layer):
                continue
            way = next((way for pattern, way in told.items() if fnmatch.fnmatchcase(name, pattern)), None)
            owner = _at(module, name.rpartition(".")[0]) if "." in name else module
            if way is None or _heads(owner, plan.ranks):
                continue
            if way in ("colwise", "colwise_rep", "colwise_gather_output"):
                plan.column(layer, "outputs, as its tp_plan says")
            elif way == "rowwise":
                plan.row(layer, "inputs, as its tp_plan says")


def _overridden(plan: _Plan, name: str, parameter: torch.Tensor, override: Mapping[str, str]) -> None:
    for pattern, way in override.items():
        if not fnmatch.fnmatchcase(name, pattern):
            continue
        why = f"{way}, as the plan says"
        if way == "replicated":
            plan.give(parameter, None, why)
        else:
            dim, _, fused = way.partition("/")
            plan.give(parameter, DimCut(int(dim), plan.ranks, int(fused or 1)), why)


def _why_whole(parameter: torch.Tensor, cut: DimCut | None) -> str:
    """Return the reason why a parameter cannot be cut as asked, or ""."""
    if cut is None:
        return ""
    if is_lazy(parameter) or parameter.is_meta:
        return "it has no elements yet"
    if cut.dim >= parameter.dim():
        return f"it has no dimension {cut.dim}"
    if not cut.divides(parameter.shape):
        size = parameter.shape[cut.dim]
        return f"its {size} entries along dimension {cut.dim} do not divide by {cut.ranks * cut.fused}"
    if not parameter.is_contiguous() or not parameter.is_floating_point():
        return "it is not a contiguous tensor of floats"
    if parameter._backward_hooks:
        return "it has hooks, which see whole gradients"
    return ""
