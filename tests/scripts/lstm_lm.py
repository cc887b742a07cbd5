"""Word-level LSTM language model over contiguous chunks, the hidden state carried along."""

import argparse
import inspect
import math
import os
import re
import shlex

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=12)
parser.add_argument("--bptt", type=int, default=16)
parser.add_argument("--emsize", type=int, default=32)
parser.add_argument("--nhid", type=int, default=32)
parser.add_argument("--lr", type=float, default=5.0)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--out", default=".")
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

words = re.findall(r"\w+|[^\w\s]", inspect.getsource(shlex))
word2idx = {}
for word in words:
    word2idx.setdefault(word, len(word2idx))
ids = torch.tensor([word2idx[w] for w in words], dtype=torch.int64)
ntokens = len(word2idx)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).contiguous().to(device)


cut = int(0.85 * len(ids))
train_data = batchify(ids[:cut], args.batch_size)
val_data = batchify(ids[cut:], args.batch_size)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(nhid, ntoken)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        self.nlayers, self.nhid = nlayers, nhid

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        return self.decoder(self.drop(output)), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (
            weight.new_zeros(self.nlayers, bsz, self.nhid),
            weight.new_zeros(self.nlayers, bsz, self.nhid),
        )


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(args.bptt, source.size(1) - 1 - i)
    return source[:, i : i + seq_len], source[:, i + 1 : i + 1 + seq_len].reshape(-1)


model = RNNModel(ntokens, args.emsize, args.nhid, 2, args.dropout).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)


def evaluate(source):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    with torch.no_grad():
        for i in range(0, source.size(1) - 1, args.bptt):
            data, targets = get_batch(source, i)
            output, hidden = model(data, hidden)
            total_loss += data.size(1) * criterion(output.view(-1, ntokens), targets).item()
    return total_loss / (source.size(1) - 1)


best_val_loss = None
for epoch in range(1, args.epochs + 1):
    model.train()
    total_loss, batches = 0.0, 0
    hidden = model.init_hidden(args.batch_size)
    for i in range(0, train_data.size(1) - 1, args.bptt):
        data, targets = get_batch(train_data, i)
        hidden = repackage_hidden(hidden)
        model.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output.reshape(-1, ntokens), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss += loss.item()
        batches += 1
    val_loss = evaluate(val_data)
    print(
        "| epoch {:3d} | {:3d} batches | loss {:5.3f} | valid loss {:5.3f} | valid ppl {:8.2f}".format(
            epoch, batches, total_loss / batches, val_loss, math.exp(val_loss)
        )
    )
    if best_val_loss is None or val_loss < best_val_loss:
        with open(os.path.join(args.out, "lstm.pt"), "wb") as f:
            torch.save(model.state_dict(), f)
        best_val_loss = val_loss
    else:
        for group in optimizer.param_groups:
            group["lr"] /= 4.0
