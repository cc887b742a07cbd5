"""Character GRU/LSTM, sequence first: input [T, B], hidden state [layers, B, H] carried along."""

import argparse
import inspect
import math
import os
import string

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=23)
parser.add_argument("--bptt", type=int, default=25)
parser.add_argument("--nhid", type=int, default=32)
parser.add_argument("--lr", type=float, default=1.0)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--model", default="LSTM", choices=["LSTM", "GRU"])
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--out", default=".")
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

text = inspect.getsource(string)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
ntokens = len(chars)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous().to(device)


split = int(0.9 * len(data))
train_data = batchify(data[:split], args.batch_size)
val_data = batchify(data[split:], args.batch_size)


class RNNModel(nn.Module):
    def __init__(self, rnn_type, ntoken, nhid, nlayers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, nhid)
        self.rnn = getattr(nn, rnn_type)(nhid, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.ntoken, self.rnn_type, self.nhid, self.nlayers = ntoken, rnn_type, nhid, nlayers
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output))
        decoded = decoded.view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        h = weight.new_zeros(self.nlayers, bsz, self.nhid)
        return (h, torch.zeros_like(h)) if self.rnn_type == "LSTM" else h


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


model = RNNModel(args.model, ntokens, args.nhid, 2, args.dropout).to(device)
criterion = nn.NLLLoss()


def evaluate(source):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, args.bptt):
            data, targets = get_batch(source, i)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(source) - 1)


def sample(length, prime):
    """Greedy text, one character at a time: [1, 1] in, the most likely character out."""
    model.eval()
    hidden = model.init_hidden(1)
    input = torch.tensor([[stoi[prime]]], device=device)
    out = [prime]
    with torch.no_grad():
        for _ in range(length):
            output, hidden = model(input, hidden)
            index = output[-1].argmax()
            input.fill_(index)
            out.append(chars[index.item()])
    return "".join(out)


optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
best_val_loss = None
for epoch in range(1, args.epochs + 1):
    model.train()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with torch.no_grad():
            state = hidden[0] if args.model == "LSTM" else hidden
            activity = state[-1].abs().mean().item()
        optimizer.step()
        total_loss += loss.item()
        if batch % 10 == 0:
            print(f"| epoch {epoch} | batch {batch:3d} | loss {loss.item():.5f} | activity {activity:.5f}")
    val_loss = evaluate(val_data)
    print(f"| end of epoch {epoch} | valid loss {val_loss:.5f} | valid ppl {math.exp(val_loss):.4f}")
    if not best_val_loss or val_loss < best_val_loss:
        torch.save(model.state_dict(), os.path.join(args.out, "char_rnn.pt"))
        best_val_loss = val_loss
    else:
        optimizer.param_groups[0]["lr"] /= 4.0
print(repr(sample(20, "s")))
