"""The workloads by name."""

from bert import BERT, BERT_NO_DROPOUT
from gpt import GPT_SMALL
from language_model import LM_1B, LM_TINY
from mlp import MLP, MLP_512
from resnet18 import RESNET18_BN, RESNET18_GN
from transformer import TRANSFORMER

CATALOGUE = {
    "transformer": TRANSFORMER,
    "gpt": GPT_SMALL,
    "resnet18-gn": RESNET18_GN,
    "resnet18-bn": RESNET18_BN,
    "bert": BERT,
    "bert-no-dropout": BERT_NO_DROPOUT,
    "mlp": MLP,
    "mlp-512": MLP_512,
    "lm-1b": LM_1B,
    "lm-tiny": LM_TINY,
}
