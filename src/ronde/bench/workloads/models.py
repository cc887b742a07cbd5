"""The models, shared by each script and its DDP twin."""

import torch
from torch import Tensor, nn


class Transformer(nn.Module):
    """An encoder over tokens that classifies the sequence: 4 layers of 256."""

    def __init__(self, vocabulary=1000, classes=10, width=256, layers=4, heads=4, length=64, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.encoder(self.embedding(tokens) + self.position[: tokens.size(1)])
        return self.head(hidden.mean(1))


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.norm_2(x))


class GPT(nn.Module):
    """A decoder with tied embeddings; returns logits [batch, length, vocabulary]."""

    def __init__(self, vocabulary=8000, width=256, layers=4, heads=4, length=64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.size(1), device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(places))))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with GroupNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm_1 = nn.GroupNorm(32, outputs)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_2 = nn.GroupNorm(32, outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(32, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm_1(self.conv_1(x)))
        return torch.relu(self.norm_2(self.conv_2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016) with GroupNorm and the 3x3 stem used for small images."""

    def __init__(self, channels=1, classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()
        )
        stages, inputs = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean((2, 3)))


def mlp(width=2048) -> nn.Sequential:
    """784-2048-2048-10."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )
