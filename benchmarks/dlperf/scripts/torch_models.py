"""The models as modules of torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from models import BATCH_NORM_EPS, LAYER_NORM_EPS, MOMENTUM, masked_places, segments
from torch import nn


def _norm(channels):
    return nn.BatchNorm2d(channels, eps=BATCH_NORM_EPS, momentum=MOMENTUM)


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut; the 3x3 one has the stride (v1.5)."""

    def __init__(self, inputs, width, stride, *, shortened):
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), _norm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), _norm(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), _norm(outputs)
        # As is usual: a block begins as its shortcut. Else the first steps magnify rounding.
        nn.init.zeros_(self.bn3.weight)
        self.short = nn.Identity()
        if shortened:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.short(x))


class ResNet(nn.Module):
    """ResNet (He et al. 2016) of bottlenecks."""

    def __init__(self, sizes):
        super().__init__()
        inputs = sizes["width"]
        self.conv1, self.bn1 = nn.Conv2d(3, inputs, 7, 2, 3, bias=False), _norm(inputs)
        stages = []
        for stage, blocks in enumerate(sizes["stages"]):
            width, made = sizes["width"] * 2**stage, []
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                made.append(Bottleneck(inputs, width, stride, shortened=not block))
                inputs = 4 * width
            stages.append(nn.Sequential(*made))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, sizes["classes"])

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, 2, 1)
        return self.head(self.stages(x).mean((2, 3)))


class Bert(nn.Module):
    """BERT (Devlin et al. 2019) without dropout.

    It returns the logits of masked words, where there are any, and of the text.
    """

    def __init__(self, sizes):
        super().__init__()
        width, length = sizes["width"], sizes["length"]
        self.words = nn.Embedding(sizes["vocabulary"], width)
        self.positions, self.segments = nn.Embedding(length, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        layer = nn.TransformerEncoderLayer(
            width, sizes["heads"], 4 * width, 0.0, "gelu", layer_norm_eps=LAYER_NORM_EPS, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, sizes["layers"], enable_nested_tensor=False)
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, sizes["classes"])
        self.masked = sizes["masked"]
        if self.masked:
            self.transform = nn.Linear(width, width)
            self.transform_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
            self.words_bias = nn.Parameter(torch.zeros(sizes["vocabulary"]))
        self.register_buffer("sentence", torch.tensor(segments(sizes)), persistent=False)
        self.register_buffer("places", torch.tensor(masked_places(sizes)), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, words):
        places = torch.arange(words.size(1))
        x = self.encoder(self.norm(self.words(words) + self.positions(places) + self.segments(self.sentence)))
        text = self.classifier(torch.tanh(self.pooler(x[:, 0])))
        if not self.masked:
            return text
        found = self.transform_norm(F.gelu(self.transform(x[:, self.places])))
        return F.linear(found, self.words.weight, self.words_bias), text


def make(case):
    """Return the model of a case."""
    return (ResNet if case["model"] == "resnet" else Bert)(case["sizes"])


def loss_of(outputs, targets):
    """Return the mean loss of a batch, as `models.loss` does."""
    if isinstance(outputs, torch.Tensor):
        return F.cross_entropy(outputs, targets[:, -1])
    words, text = outputs
    of_words = F.cross_entropy(words.flatten(0, 1), targets[:, :-1].flatten())
    return of_words + F.cross_entropy(text, targets[:, -1])
