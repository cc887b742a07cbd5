"""The workloads by name."""

from bert import BERT, BERT_NO_DROPOUT
from clicks import CLICKS_1M, CLICKS_4M
from gpt import GPT_SMALL, LM_1B, LM_TINY
from mlp import MLP, MLP_20K, MLP_512
from resnet18 import RESNET18_BN, RESNET18_GN
from transformer import TRANSFORMER, TRANSFORMER_512

CATALOGUE = {
    "transformer": TRANSFORMER,
    "transformer-512": TRANSFORMER_512,
    "gpt": GPT_SMALL,
    "resnet18-gn": RESNET18_GN,
    "resnet18-bn": RESNET18_BN,
    "bert": BERT,
    "bert-no-dropout": BERT_NO_DROPOUT,
    "mlp": MLP,
    "mlp-512": MLP_512,
    "mlp-20k": MLP_20K,
    "clicks-1m": CLICKS_1M,
    "clicks-4m": CLICKS_4M,
    "lm-1b": LM_1B,
    "lm-tiny": LM_TINY,
}
