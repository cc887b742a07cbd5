"""Text classification with a BERT encoder."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from workload import Workload

LENGTH, VOCABULARY, CLASSES = 64, 30_522, 2
PADDING, BEGINNING, FIRST_WORD = 0, 101, 1000  # as in the vocabulary of bert-base-uncased


class Bert(nn.Module):
    """BERT (Devlin et al. 2019) of the size of BERT-mini (Turc et al. 2019)."""

    def __init__(self, dropout: float, width: int = 256, layers: int = 4, heads: int = 4):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        self.positions = nn.Embedding(LENGTH, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        hidden = self.dropout(self.norm(self.words(tokens) + self.positions(places)))
        hidden = self.encoder(hidden, src_key_padding_mask=tokens == PADDING)
        pooled = torch.tanh(self.pooler(hidden[:, 0]))
        return self.classifier(self.dropout(pooled))


def texts(count: int) -> TensorDataset:
    """Random texts of 16 to 64 tokens; some words tell the class."""
    labels = torch.randint(CLASSES, (count,))
    tokens = torch.randint(FIRST_WORD + CLASSES, VOCABULARY, (count, LENGTH))
    telling = torch.rand(count, LENGTH) < 0.1
    tokens = torch.where(telling, FIRST_WORD + labels[:, None], tokens)
    lengths = torch.randint(LENGTH // 4, LENGTH + 1, (count, 1))
    tokens[torch.arange(LENGTH) >= lengths] = PADDING
    tokens[:, 0] = BEGINNING
    return TensorDataset(tokens, labels)


def _workload(dropout: float) -> Workload:
    return Workload(
        batch_size=32,
        steps=25,
        warm_up=5,
        data=texts,
        model=partial(Bert, dropout),
        optimizer=partial(torch.optim.AdamW, lr=5e-5, weight_decay=0.01),
    )


BERT = _workload(dropout=0.1)
BERT_NO_DROPOUT = _workload(dropout=0.0)
