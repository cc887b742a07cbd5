"""The cost graph of a transformer from its sizes.

Activations are those of Korthikanti et al. 2022 (sbh(10 + 24/t + 5as/(ht)) bytes a layer in half precision),
checked by `python -m benchmarks.planner` against the peaks that Megatron-LM's tests record.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ronde.errors import UsageError
from ronde.plan.key import did_you_mean
from ronde.planner.graph import KERNELS, Attention, CostGraph, Kernels, Matmul, ModelBlock

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

__all__ = ["MODELS", "TransformerSizes", "read_model", "transformer_graph"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TransformerSizes:
    """The sizes of a decoder or encoder.

    Attributes:
        layers, hidden, heads: numbers of layers, of hidden values of a token, and of attention heads.
        key_value_heads: groups of keys and values; 0 for as many as heads.
        feed_forward: inner size; 0 for four times hidden.
        gated: whether the feed-forward part has a third matrix (SwiGLU).
        vocabulary: rows of the embedding.
        sequence: tokens of a sample.
        batch: samples of a global batch.
        tied: whether input and output embedding are one.
        dropout: whether the model has dropout, whose masks are kept.
        fused_attention: whether attention is fused (flash attention), which keeps no scores.
        positions: whether positions are learned parameters.
        loss_bytes: bytes that the loss keeps for each logit beside the logits.
        loss_moves: numbers that the loss reads and writes for each logit in forward; backward twice as many.
        kernels: the way in which operations start (`CostGraph.kernels`).
        experts: feed-forward parts of a layer, one of which a token takes.
    """

    name: str = "model"
    layers: int
    hidden: int
    heads: int
    key_value_heads: int = 0
    feed_forward: int = 0
    gated: bool = False
    vocabulary: int
    sequence: int
    batch: int
    tied: bool = True
    dropout: bool = False
    fused_attention: bool = True
    positions: bool = False
    loss_bytes: int = 4
    loss_moves: int = 3
    experts: int = 1
    kernels: Kernels = "eager"


_GPT = TransformerSizes(
    layers=12, hidden=768, heads=12, vocabulary=50304, sequence=1024, batch=512, positions=True, dropout=True
)
_LLAMA = TransformerSizes(
    layers=32,
    hidden=4096,
    heads=32,
    feed_forward=11008,
    gated=True,
    vocabulary=32000,
    sequence=4096,
    batch=1024,
    tied=False,
)
_NAMED = (
    dataclasses.replace(_GPT, name="gpt2-small"),
    dataclasses.replace(_GPT, name="gpt2-medium", layers=24, hidden=1024, heads=16),
    dataclasses.replace(_GPT, name="gpt2-large", layers=36, hidden=1280, heads=20),
    dataclasses.replace(_GPT, name="gpt2-xl", layers=48, hidden=1600, heads=25),
    TransformerSizes(
        name="gpt3-175b",
        layers=96,
        hidden=12288,
        heads=96,
        vocabulary=51200,
        sequence=2048,
        batch=1536,
        positions=True,
    ),
    dataclasses.replace(_LLAMA, name="llama2-7b"),
    dataclasses.replace(_LLAMA, name="llama2-13b", layers=40, hidden=5120, heads=40, feed_forward=13824),
    dataclasses.replace(
        _LLAMA, name="llama2-70b", layers=80, hidden=8192, heads=64, key_value_heads=8, feed_forward=28672
    ),
)

MODELS: Mapping[str, TransformerSizes] = {model.name: model for model in _NAMED}
"""Models by name."""


def read_model(source: str) -> TransformerSizes:
    """Return the model of a name or a `.toml` file.

    The file's keys are the fields of `TransformerSizes`, with dashes.

    Raises:
        UsageError: the name is unknown, or the file has mistakes; all are listed.
    """
    if not source.endswith(".toml"):
        if source not in MODELS:
            near = difflib.get_close_matches(source, list(MODELS), n=1, cutoff=0.3)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(
                f"--model {source} is not a known model{hint}; give one of {', '.join(MODELS)}, or a "
                ".toml file [R800]"
            )
        return MODELS[source]
    try:
        fields = tomllib.loads(Path(source).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read --model {source}: {error.strerror}; give a name or a .toml file [R800]"
        ) from None
    # The text is not TOML, or the bytes are not text.
    except ValueError as error:
        raise UsageError(f"--model {source} is not TOML: {error} [R802]") from None
    wrong = list(_mistakes(fields))
    if wrong:
        raise UsageError(f"--model {source}: {'; '.join(wrong)} [R802]")
    return TransformerSizes(**{key.replace("-", "_"): value for key, value in fields.items()})


def _mistakes(fields: Mapping[str, Any]) -> Iterator[str]:
    known = {field.name.replace("_", "-"): field for field in dataclasses.fields(TransformerSizes)}
    for key, value in fields.items():
        if key not in known:
            yield f"{key} is not a key{did_you_mean(key, known)}: there are {', '.join(known)}"
            continue
        kind = known[key].type
        if kind == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            yield f"{key} is {value!r}: give a whole number"
        elif kind == "bool" and not isinstance(value, bool):
            yield f"{key} is {value!r}: give true or false"
        elif kind == "Kernels" and value not in KERNELS:
            yield f"{key} is {value!r}{did_you_mean(str(value), KERNELS)}: give one of {', '.join(KERNELS)}"
    for key, field in known.items():
        missing = field.default is dataclasses.MISSING
        if missing and not fields.get(key):
            yield f"{key} is missing or zero: give a whole number from 1"
    hidden, heads = fields.get("hidden"), fields.get("heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads:
        nearest = max(1, round(hidden / heads)) * heads
        yield f"hidden is {hidden}, no multiple of heads ({heads}): the nearest is {nearest}"


def transformer_graph(model: TransformerSizes) -> CostGraph:
    """Return the cost graph of a transformer with these sizes."""
    s, h = model.sequence, model.hidden
    embedding = float(model.vocabulary * h)
    positions = float(s * h) if model.positions else 0.0
    first = ModelBlock(
        name="embedding",
        parameters_cut=embedding,
        parameters_whole=positions,
        moved_whole=3.0 * s * h,
        kernels=3,
        masks_whole=s * h * model.dropout + 8.0 * s,
        output=float(s * h),
        exchanges=1,
        table=True,
    )
    last = ModelBlock(
        name="logits and loss",
        parameters_cut=embedding,
        parameters_whole=2.0 * h,
        matmuls=(Matmul(rows=s, n=model.vocabulary, k=h, cut="columns"),),
        moved_cut=float(model.loss_moves) * s * model.vocabulary,
        moved_whole=4.0 * s * h,
        kernels=6,
        saved_whole=2.0 * s * h,
        saved_cut=float(s * model.vocabulary),
        masks_cut=float(model.loss_bytes * s * model.vocabulary),
        results=float(s * model.vocabulary),
        output=1.0,
    )
    return CostGraph(
        name=model.name,
        batch=model.batch,
        tokens=s,
        first=first,
        block=_layer(model),
        last=last,
        layers=model.layers,
        heads=model.heads,
        tied=embedding if model.tied else 0.0,
        experts=model.experts,
        kernels=model.kernels,
        source=f"the sizes of {model.name}",
    )


def _layer(model: TransformerSizes) -> ModelBlock:
    s, h = model.sequence, model.hidden
    groups = model.key_value_heads or model.heads
    inner = model.feed_forward or 4 * h
    share = groups / model.heads
    width = 3 if model.gated else 2
    qkv = round(h * (1 + 2 * share))
    matmuls = (
        Matmul(rows=s, n=qkv, k=h, cut="columns"),
        Matmul(rows=s, n=h, k=h, cut="rows"),
        Matmul(rows=s, n=inner, k=h, cut="columns", count=width - 1),
        Matmul(rows=s, n=h, k=inner, cut="rows"),
    )
    scores = float(model.heads * s * s)
    attention = Attention(
        flops=4.0 * s * s * h,
        values=0.0 if model.fused_attention else scores * (4 if model.dropout else 3),
        saved=0.0 if model.fused_attention else scores * (2 if model.dropout else 1),
        masks=4.0 * model.heads * s if model.fused_attention else scores * model.dropout,
        fused=model.fused_attention,
        head_size=h // model.heads,
        scores=0.0 if model.fused_attention else scores,
        keys=2.0 * s * h * share,
        heads=model.heads,
    )
    feed_forward = float(width * h * inner)
    return ModelBlock(
        name="layer",
        parameters_cut=h * qkv + h * h + qkv + (inner + feed_forward) * (model.experts == 1),
        parameters_whole=6.0 * h,
        parameters_routed=(inner + feed_forward) * model.experts if model.experts > 1 else 0.0,
        routed=float(s * h) if model.experts > 1 else 0.0,
        matmuls=matmuls,
        attention=attention,
        moved_whole=10.0 * s * h + 2.0 * s * h * model.dropout,
        moved_cut=(2.0 if not model.gated else 3.0) * s * inner,
        kernels=8 + 2 * model.dropout,
        saved_whole=4.0 * s * h,
        # Queries, keys, values, the output of attention; the input and output of the activation function.
        saved_cut=s * (qkv + h) + float(width) * s * inner,
        masks_whole=2.0 * s * h * model.dropout,
        output=float(s * h),
        exchanges=2,
        repeated=True,
        results=s * (qkv + 2 * h) + (width - 1.0) * s * inner + s * h,
    )
