"""Which module does a line of source come from? A GRU over packed sequences."""

import argparse
import inspect
import os
import random
import shlex
import textwrap

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader


class LineClassifier(nn.Module):
    def __init__(self, vocab_size=128, dim=16, hidden=24, classes=2):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.gru = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, text, lengths):
        packed = pack_padded_sequence(self.embed(text), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, h = self.gru(packed)
        h = torch.cat([h[-2], h[-1]], dim=1)
        return self.fc(self.dropout(h))


def collate_batch(batch):
    texts = [torch.tensor([min(ord(c), 127) for c in line]) for line, _ in batch]
    labels = torch.tensor([label for _, label in batch])
    lengths = torch.tensor([len(t) for t in texts])
    return pad_sequence(texts, batch_first=True), lengths, labels


def load_samples():
    samples = []
    for label, module in enumerate([textwrap, shlex]):
        for line in inspect.getsource(module).splitlines():
            if len(line.strip()) > 3:
                samples.append((line.strip()[:40], label))
    random.shuffle(samples)
    return samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    samples = load_samples()
    split = int(len(samples) * 0.85)
    train_dl = DataLoader(samples[:split], args.batch_size, shuffle=True, collate_fn=collate_batch)
    test_dl = DataLoader(samples[split:], args.batch_size, collate_fn=collate_batch)
    labels = torch.tensor([label for _, label in samples[:split]])
    weight = 1.0 / torch.bincount(labels).to(torch.get_default_dtype())
    weight = weight / weight.sum()

    model = LineClassifier().to(device)
    criterion = nn.CrossEntropyLoss(weight=weight.to(device))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        epoch_loss = 0
        for text, lengths, label in train_dl:
            text, label = text.to(device), label.to(device)
            optimizer.zero_grad()
            loss = criterion(model(text, lengths), label)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        model.eval()
        hits = 0
        with torch.no_grad():
            for text, lengths, label in test_dl:
                hits += (model(text.to(device), lengths).argmax(1) == label.to(device)).sum().item()
        print(f"epoch {epoch}: loss {epoch_loss / len(train_dl):.4f}, {hits} of {len(test_dl.dataset)} right")
    torch.save(model.state_dict(), os.path.join(args.out, "line_classifier.pt"))


if __name__ == "__main__":
    main()
