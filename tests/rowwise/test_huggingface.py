"""Models of Hugging Face's, with masks, kernels and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ronde.messages import lift
from ronde.tensor.tree import leaves
from rowwise.one_rank import observe

transformers: Any = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

ROWS, STEPS, WORDS = 8, 12, 99
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**SMALL, "vocab_size": WORDS}
IMAGE = {**SMALL, "image_size": 32, "patch_size": 8}
SEQUENCES = {
    "d_model": 32,
    "vocab_size": WORDS,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}


def words(steps: int = STEPS) -> torch.Tensor:
    return torch.randint(5, WORDS, (ROWS, steps))


def mask() -> torch.Tensor:
    """The first text is as long as can be, and some are not."""
    lengths = torch.tensor([STEPS, 4, 7, STEPS, 9, 5, 11, 6]).unsqueeze(1)
    return (torch.arange(STEPS)[None] < lengths).long()


def text() -> dict[str, torch.Tensor]:
    return {"input_ids": words(), "attention_mask": mask()}


def uncached() -> dict[str, Any]:
    return {**text(), "use_cache": False}


def images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(ROWS, 3, 32, 32)}


Made = tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]
# Model, configuration, its values, arguments.
CUT: dict[str, Made] = {
    "BERT": ("BertModel", "BertConfig", TEXT, lambda: {"input_ids": words()}),
    "BERT, masked": (
        *("BertForSequenceClassification", "BertConfig", TEXT),
        lambda: {**text(), "token_type_ids": torch.zeros(ROWS, STEPS, dtype=torch.long)},
    ),
    "BERT, nothing masked": (
        *("BertModel", "BertConfig", TEXT),
        lambda: {"input_ids": words(), "attention_mask": torch.ones(ROWS, STEPS, dtype=torch.long)},
    ),
    "DistilBERT": (
        *("DistilBertModel", "DistilBertConfig"),
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": WORDS},
        text,
    ),
    "RoBERTa": ("RobertaModel", "RobertaConfig", {**TEXT, "pad_token_id": 1}, text),
    "Electra": ("ElectraModel", "ElectraConfig", {**TEXT, "embedding_size": 32}, text),
    "ALBERT": ("AlbertModel", "AlbertConfig", {**TEXT, "embedding_size": 32}, text),
    "DeBERTa": (
        *("DebertaV2Model", "DebertaV2Config"),
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        text,
    ),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", GPT2, uncached),
    "GPT-2, with a cache": ("GPT2LMHeadModel", "GPT2Config", GPT2, lambda: {"input_ids": words()}),
    "T5, with a cache": (
        *("T5Model", "T5Config"),
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS},
        lambda: {**text(), "decoder_input_ids": words(6)},
    ),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", TEXT, uncached),
    "Llama, unmasked": (
        *("LlamaForCausalLM", "LlamaConfig", TEXT),
        lambda: {"input_ids": words(), "use_cache": False},
    ),
    "Mistral": ("MistralModel", "MistralConfig", {**TEXT, "num_key_value_heads": 2}, uncached),
    "Qwen2": ("Qwen2Model", "Qwen2Config", {**TEXT, "num_key_value_heads": 2}, uncached),
    "Gemma": ("GemmaModel", "GemmaConfig", {**TEXT, "head_dim": 8, "num_key_value_heads": 2}, uncached),
    "OPT": (
        *("OPTModel", "OPTConfig"),
        {
            **{name: value for name, value in TEXT.items() if name != "intermediate_size"},
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
        },
        uncached,
    ),
    "T5": (
        *("T5Model", "T5Config"),
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS},
        lambda: {**uncached(), "decoder_input_ids": words(6)},
    ),
    "BART": ("BartModel", "BartConfig", SEQUENCES, uncached),
    "Whisper": (
        *("WhisperModel", "WhisperConfig"),
        {
            **SEQUENCES,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        lambda: {
            "input_features": torch.randn(ROWS, 8, 20),
            "decoder_input_ids": words(),
            "use_cache": False,
        },
    ),
    "XLNet": (
        *("XLNetModel", "XLNetConfig"),
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": WORDS},
        text,
    ),
    "Mamba": (
        *("MambaModel", "MambaConfig"),
        {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "vocab_size": WORDS},
        lambda: {"input_ids": words(), "use_cache": False},
    ),
    "ViT": ("ViTModel", "ViTConfig", IMAGE, images),
    "CLIP's images": ("CLIPVisionModel", "CLIPVisionConfig", IMAGE, images),
    "CLIP's texts": ("CLIPTextModel", "CLIPTextConfig", {**TEXT, "eos_token_id": 2}, text),
    "Swin": (
        *("SwinModel", "SwinConfig"),
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        images,
    ),
    "ResNet": (
        *("ResNetModel", "ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
        images,
    ),
    "ConvNeXt": (
        *("ConvNextModel", "ConvNextConfig"),
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 4},
        images,
    ),
}
_LOSS = "an output without a batch axis depends on the batch (a loss of its own?)"
NOT_CUT: dict[str, tuple[Made, str]] = {
    "BERT with a loss": (
        (
            *("BertForSequenceClassification", "BertConfig", TEXT),
            lambda: {**text(), "labels": torch.randint(0, 2, (ROWS,))},
        ),
        _LOSS,
    ),
    "GPT-2 with a loss": (
        ("GPT2LMHeadModel", "GPT2Config", GPT2, lambda: {**uncached(), "labels": words()}),
        _LOSS,
    ),
    "CLIP": (
        (
            *("CLIPModel", "CLIPConfig", {"text_config": TEXT, "vision_config": IMAGE}),
            lambda: {"input_ids": words(), **images()},
        ),
        "rows of its output depend on other rows, or on their number (mm)",
    ),
    "Mixtral": (
        (
            *("MixtralModel", "MixtralConfig", {**TEXT, "num_key_value_heads": 2, "num_local_experts": 4}),
            uncached,
        ),
        "rows of its output depend on other rows, or on their number (sort)",
    ),
}
# The others take long to be made.
_OFTEN = ("BERT, masked", "GPT-2, with a cache", "Llama", "T5")


def made(case: Made, kernel: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    model, configuration, values, arguments = case
    torch.manual_seed(0)
    known = {} if model in _OWN_KERNELS else {"attn_implementation": kernel}
    config = getattr(transformers, configuration)(**values, **known)
    return getattr(transformers, model)(config), arguments()


_OWN_KERNELS = {
    "T5Model",
    "DebertaV2Model",
    "XLNetModel",
    "MambaModel",
    "SwinModel",
    "ResNetModel",
    "ConvNextModel",
}


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "gradients"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "name", [name if name in _OFTEN else pytest.param(name, marks=pytest.mark.soak) for name in CUT]
)
def test_models_are_cut(name: str, kernel: str, gradients: bool) -> None:
    module, arguments = made(CUT[name], kernel)
    if not gradients:
        module.eval()
    with torch.set_grad_enabled(gradients):
        torch.manual_seed(1)
        observed = observe(module, (), arguments)
        assert observed.verdict.sharded, observed.verdict.reason
        torch.manual_seed(1)
        expected = module(**arguments)
    for value, other in zip(leaves(expected), leaves(observed.output), strict=True):
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


@pytest.mark.parametrize("name", NOT_CUT)
def test_models_that_are_not_cut(name: str) -> None:
    case, reason = NOT_CUT[name]
    module, arguments = made(case, "sdpa")
    assert lift(observe(module, (), arguments).verdict.reason)[1] == reason
