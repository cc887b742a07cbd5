"""Torch's transformers take their fast path where their parameters have a class of ronde's."""

import types
from typing import Any

import pytest
import torch
from torch import nn

from ronde.boundary import fast_path
from ronde.boundary.context import Region
from ronde.boundary.patches import Patches


class _InParts(nn.Parameter):
    """As a parameter in parts, it hears of every operation."""

    __module__ = "ronde.parallel"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class _OfTheUser(_InParts):
    __module__ = "train"


def _at_padded_places(kind: type[nn.Parameter]) -> float:
    layer = nn.TransformerEncoderLayer(8, 2, 6, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    for part in encoder.modules():
        for name, value in part.named_parameters(recurse=False):
            setattr(part, name, kind(value.detach()))
    padding = torch.arange(5) > torch.tensor([[2], [4]])
    with torch.no_grad():
        out = encoder(torch.ones(2, 5, 8), src_key_padding_mask=padding)
    return out[padding].abs().sum().item()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_class_of_ronde_is_none_of_the_scripts() -> None:
    patches, context = Patches(), types.SimpleNamespace(batchless=False, pieces=1, region=Region.SCRIPT)
    assert _at_padded_places(nn.Parameter) == 0
    assert _at_padded_places(_InParts) > 0
    fast_path.install(patches, context)  # pyright: ignore[reportArgumentType]
    try:
        assert _at_padded_places(_InParts) == 0
        assert _at_padded_places(_OfTheUser) > 0
    finally:
        patches.restore()
