"""A causal transformer language model, sequence first: input [T, B], a [T, T] mask made by the script."""

import argparse
import inspect
import math
import os
import string

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=22)
parser.add_argument("--bptt", type=int, default=22)
parser.add_argument("--emsize", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=5)
parser.add_argument("--out", default=".")
args = parser.parse_args()

torch.manual_seed(args.seed)
text = inspect.getsource(string)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])


def batchify(ids, bsz):
    length = len(ids) // bsz
    return ids[: length * bsz].view(bsz, length).t().contiguous()


split = int(0.9 * len(ids))
train_data, val_data = batchify(ids[:split], args.batch_size), batchify(ids[split:], args.batch_size)


class TransformerModel(nn.Module):
    def __init__(self, ntoken, d_model, nhead, d_hid, nlayers, dropout):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(ntoken, d_model)
        self.places = nn.Parameter(0.02 * torch.randn(64, 1, d_model))
        layer = nn.TransformerEncoderLayer(d_model, nhead, d_hid, dropout)
        self.encoder = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.linear = nn.Linear(d_model, ntoken)

    def forward(self, src, src_mask):
        x = self.embedding(src) * math.sqrt(self.d_model) + self.places[: len(src)]
        return self.linear(self.encoder(x, src_mask))


model = TransformerModel(len(chars), args.emsize, 2, 64, 2, args.dropout)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)


def get_batch(source, i):
    length = min(args.bptt, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].reshape(-1)


def mask_for(data):
    return torch.triu(torch.full((len(data), len(data)), float("-inf")), diagonal=1)


@torch.no_grad()
def evaluate():
    model.eval()
    total = 0.0
    for i in range(0, len(val_data) - 1, args.bptt):
        data, targets = get_batch(val_data, i)
        total += len(data) * criterion(model(data, mask_for(data)).view(-1, len(chars)), targets).item()
    return total / (len(val_data) - 1)


for epoch in range(1, args.epochs + 1):
    model.train()
    for step, i in enumerate(range(0, len(train_data) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        output = model(data, mask_for(data))
        loss = criterion(output.view(-1, len(chars)), targets)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step % 5 == 0:
            print(f"epoch {epoch} step {step:2d} loss {loss.item():.5f} norm {norm.item():.5f}")
    scheduler.step()
    print(f"epoch {epoch} validation {evaluate():.5f}")
torch.save(model.state_dict(), os.path.join(args.out, "transformer_lm.pt"))
