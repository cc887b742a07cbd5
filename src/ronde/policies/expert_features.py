"""Cuts of expert features over a tensor group.

Applies where one module has the parameters of all experts. Each rank has some of the features between the two
matrices of every expert, so the sum of the ranks' outputs is the output of one device (Shoeybi et al. 2019,
"Megatron-LM"), however tokens choose.
"""

from __future__ import annotations

from torch import nn

from ronde.shards.dim_cut import DimCut

__all__ = ["feature_cuts"]

# Attributes that Hugging Face sets on modules of experts (`use_experts_implementation`).
_FLAGS = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "has_post_expert_norm")


def feature_cuts(module: nn.Module, ranks: int) -> dict[str, DimCut | None]:
    """Map the names of an expert module's parameters to their cuts.

    None means a bias after the sum, of which each rank adds its share. Another module has no cuts.
    """
    transposed, gated, biased, interleaved, normed = _described(module)
    first, second = "gate_up_proj" if gated else "up_proj", "down_proj"
    inner, outer = (2, 1) if transposed else (1, 2)
    fused = 2 if gated and not interleaved else 1
    cuts: dict[str, DimCut | None] = {first: DimCut(inner, ranks, fused), second: DimCut(outer, ranks)}
    if biased:
        cuts |= {f"{first}_bias": DimCut(1, ranks, fused), f"{second}_bias": None}
    own = {name: each for name, each in module._parameters.items() if each is not None}
    if normed or own.keys() != cuts.keys() or len(own) != len(list(module.parameters())):
        return {}
    shapes_fit = own[first].dim() == own[second].dim() == 3
    return cuts if shapes_fit and own[second].shape[outer] % ranks == 0 else {}


def _described(module: nn.Module) -> tuple[bool, bool, bool, bool, bool]:
    """Return whether matrices are transposed, gated, biased, gates alternate, a norm follows."""
    gated, biased, transposed, joined, normed = (vars(module).get(name) for name in _FLAGS)
    known = all(isinstance(each, bool) for each in (gated, biased, transposed, joined, normed))
    return bool(transposed), bool(gated), bool(biased), not joined, bool(normed) or not known
