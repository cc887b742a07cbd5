"""Encoder and decoder with attention, trained with teacher forcing: words of a text, spelled backwards."""

import argparse
import inspect
import os
import random
import re
import textwrap

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

PAD, SOS, EOS = 0, 1, 2


def read_words(max_length):
    words = sorted(set(re.findall(r"[a-z]{3,%d}" % max_length, inspect.getsource(textwrap).lower())))
    chars = sorted(set("".join(words)))
    stoi = {c: i + 3 for i, c in enumerate(chars)}
    source = torch.full((len(words), max_length + 1), PAD)
    target = torch.full((len(words), max_length + 1), PAD)
    for i, word in enumerate(words):
        source[i, : len(word) + 1] = torch.tensor([*(stoi[c] for c in word), EOS])
        target[i, : len(word) + 1] = torch.tensor([*(stoi[c] for c in reversed(word)), EOS])
    return source, target, ["", "<", ">", *chars]


class Encoder(nn.Module):
    def __init__(self, vocab, width, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width, padding_idx=PAD, sparse=False)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.join = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input):
        output, hidden = self.gru(self.dropout(self.embedding(input)))
        return self.join(output), torch.tanh(self.join(hidden.transpose(0, 1).flatten(1))).unsqueeze(0)


class AttnDecoder(nn.Module):
    def __init__(self, vocab, width, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width, padding_idx=PAD)
        self.Wa, self.Ua, self.Va = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.gru = nn.GRU(2 * width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input, hidden, encoder_outputs, mask):
        query = hidden.permute(1, 0, 2)
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(encoder_outputs))).squeeze(2)
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1).unsqueeze(1)
        context = torch.bmm(weights, encoder_outputs)
        embedded = self.dropout(self.embedding(input))
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden, weights


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=60)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--max-length", type=int, default=8)
    parser.add_argument("--teacher-forcing", type=float, default=0.7)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(8)
    random.seed(8)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source, target, itos = read_words(args.max_length)
    cut = len(source) - 40
    loader = DataLoader(TensorDataset(source[:cut], target[:cut]), args.batch_size, shuffle=True)
    encoder = Encoder(len(itos), args.width, 0.1).to(device)
    decoder = AttnDecoder(len(itos), args.width, 0.1).to(device)
    optimizers = [torch.optim.SGD(part.parameters(), lr=args.lr, momentum=0.5) for part in (encoder, decoder)]
    criterion = nn.NLLLoss(ignore_index=PAD)

    def run(x, y=None):
        """Log probabilities for each place and the weights of attention; with `y`, its letters are fed."""
        outputs, hidden = encoder(x)
        mask = x == PAD
        decoder_input = torch.full((x.size(0), 1), SOS, dtype=torch.long, device=device)
        results, attentions = [], []
        for t in range(x.size(1)):
            output, hidden, weights = decoder(decoder_input, hidden, outputs, mask)
            results.append(output)
            attentions.append(weights)
            if y is not None:
                decoder_input = y[:, t].unsqueeze(1)
            else:
                decoder_input = output.topk(1).indices.squeeze(-1).detach()
        return F.log_softmax(torch.cat(results, dim=1), dim=-1), torch.cat(attentions, dim=1)

    for epoch in range(args.epochs):
        encoder.train()
        decoder.train()
        total = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            forced = random.random() < args.teacher_forcing
            log_probs, _ = run(x, y if forced else None)
            loss = criterion(log_probs.view(-1, log_probs.size(-1)), y.view(-1))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for part in (encoder, decoder):
                torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            total += loss.item()
        encoder.eval()
        decoder.eval()
        with torch.no_grad():
            x, y = source[cut:].to(device), target[cut:].to(device)
            log_probs, attention = run(x)
            loss = criterion(log_probs.flatten(0, 1), y.flatten()).item()
            guess = "".join(itos[i] for i in log_probs[0].argmax(-1).tolist())
            padding = decoder.embedding.weight[PAD].abs().sum().item()
        print(
            f"epoch {epoch}: train {total / len(loader):.6f} test {loss:.6f} first {guess!r} "
            f"attention {attention.max().item():.6f} padding {padding}"
        )
    torch.save(
        {"encoder": encoder.state_dict(), "decoder": decoder.state_dict(), "attention": attention},
        os.path.join(args.out, "seq2seq.pt"),
    )


if __name__ == "__main__":
    main()
