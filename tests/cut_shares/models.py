"""Models that people train, small: each with a batch for its forward, all built from their configurations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["MODELS", "Made"]

Made = tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]
"""A model, and its loss on one batch."""

ROWS, LENGTH, WORDS = 4, 16, 64
_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def _ids() -> torch.Tensor:
    return torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % WORDS


def _hugging_face(kind: str, model: str, **options: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**options, attn_implementation="eager")
    return getattr(transformers, f"{kind}{model}")(config)


def _by_labels(model: nn.Module) -> torch.Tensor:
    return model(input_ids=_ids(), labels=_ids()).loss


def _decoder(kind: str, **options: Any) -> Callable[[], Made]:
    sizes = {**_SIZES, "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": LENGTH}
    return lambda: (_hugging_face(kind, "ForCausalLM", **sizes, **options), _by_labels)


def _gpt2() -> Made:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "n_positions": LENGTH}
    return _hugging_face("GPT2", "LMHeadModel", **sizes), _by_labels


def _bert() -> Made:
    sizes = {**_SIZES, "vocab_size": WORDS, "max_position_embeddings": LENGTH}
    return _hugging_face("Bert", "ForMaskedLM", **sizes), _by_labels


def _t5() -> Made:
    sizes = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": WORDS}
    return _hugging_face("T5", "ForConditionalGeneration", **sizes, decoder_start_token_id=0), _by_labels


def _vit() -> Made:
    model = _hugging_face(
        "ViT", "ForImageClassification", **_SIZES, image_size=16, patch_size=4, num_labels=8
    )
    images, labels = torch.ones(ROWS, 3, 16, 16), torch.arange(ROWS)
    return model, lambda model: model(pixel_values=images, labels=labels).loss


def _whisper() -> Made:
    sizes = {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": WORDS,
        "num_mel_bins": 8, "max_source_positions": LENGTH, "max_target_positions": LENGTH, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }  # fmt: skip
    heard = torch.ones(ROWS, 8, 2 * LENGTH)
    model = _hugging_face("Whisper", "ForConditionalGeneration", **sizes)
    return model, lambda model: model(input_features=heard, labels=_ids()).loss


def _encoder() -> Made:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(WORDS, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, WORDS))
    return model, lambda model: F.cross_entropy(model(_ids()).flatten(0, 1), _ids().flatten())


class _Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS)
        self.body = nn.Transformer(32, 4, 2, 2, 64, 0.0, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(self.words(source), self.words(target)))


def _translator() -> Made:
    return _Translator(), lambda model: F.cross_entropy(model(_ids(), _ids()).flatten(0, 1), _ids().flatten())


class _ImageAttention(nn.Module):
    """Attention between the places of an image, as in the U-Nets of diffusion models."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.to_qkv = nn.GroupNorm(4, width), nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, width, height, across = x.shape
        places = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (
            each.view(rows, -1, 4, width // 4).transpose(1, 2) for each in self.to_qkv(places).chunk(3, -1)
        )
        made = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, -1, width)
        return x + self.to_out(made).transpose(1, 2).view(rows, width, height, across)


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.middle = _ImageAttention(32)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Conv2d(32, 3, 3, padding=1)
        self.time = nn.Linear(8, 32)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        wide = F.silu(self.first(x))
        low = F.silu(self.down(wide)) + self.time(time)[:, :, None, None]
        return self.last(torch.cat([self.up(self.middle(low)), wide], 1))


def _unet() -> Made:
    images, time = torch.ones(ROWS, 3, 16, 16), torch.ones(ROWS, 8)
    return _UNet(), lambda model: model(images, time).square().mean()


class _DiTBlock(nn.Module):
    """A transformer block whose norms are scaled and shifted by the time step (Peebles and Xie 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 4 * width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        shift1, scale1, shift2, scale2 = self.modulation(F.silu(time))[:, None].chunk(4, -1)
        qkv = self.qkv(self.norm1(x) * (1 + scale1) + shift1)
        q, k, v = (each.view(rows, length, 4, -1).transpose(1, 2) for each in qkv.chunk(3, -1))
        x = x + self.proj(
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, width)
        )
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x) * (1 + scale2) + shift2)))


class _DiT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.time, self.out = nn.Linear(12, 32), nn.Linear(8, 32), nn.Linear(32, 12)
        self.blocks = nn.ModuleList(_DiTBlock(32) for _ in range(2))

    def forward(self, patches: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x, time = self.patches(patches), self.time(time)
        for block in self.blocks:
            x = block(x, time)
        return self.out(x)


def _dit() -> Made:
    patches, time = torch.ones(ROWS, LENGTH, 12), torch.ones(ROWS, 8)
    return _DiT(), lambda model: model(patches, time).square().mean()


def _towers() -> Made:
    def tower(*widths: int) -> list[nn.Module]:
        return [each for pair in pairwise(widths) for each in (nn.Linear(*pair), nn.ReLU())]

    model, given = nn.Sequential(*tower(16, 64, 32, 64, 32), nn.Linear(32, 1)), torch.ones(ROWS, 16)
    return model, lambda model: model(given).square().mean()


MODELS: dict[str, Callable[[], Made]] = {
    "GPT-2": _gpt2,
    "Llama": _decoder("Llama"),
    "Qwen2": _decoder("Qwen2"),
    "Gemma": _decoder("Gemma", head_dim=8),
    "Mixtral": _decoder("Mixtral", num_local_experts=4),
    "BERT": _bert,
    "T5": _t5,
    "ViT": _vit,
    "Whisper": _whisper,
    "nn.TransformerEncoder": _encoder,
    "nn.Transformer": _translator,
    "U-Net with attention": _unet,
    "DiT": _dit,
    "DLRM's towers": _towers,
}
