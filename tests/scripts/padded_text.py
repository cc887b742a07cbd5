"""Tag every word of a sentence; batches are padded to their longest sentence."""

import argparse
import inspect
import keyword
import os
import re
import string as string_module

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, UNK = 0, 1
IGNORE = -100


def read_lines():
    lines = []
    for line in inspect.getsource(string_module).splitlines():
        tokens = re.findall(r"\w+|[^\w\s]", line)
        if tokens:
            lines.append(tokens[:24])
    return lines


def tag_of(token):
    if keyword.iskeyword(token):
        return 0
    if token.isidentifier():
        return 1
    if token.isnumeric():
        return 2
    return 3


class Lines(Dataset):
    def __init__(self, lines, vocab):
        self.samples = []
        for tokens in lines:
            ids = torch.tensor([vocab.get(t, UNK) for t in tokens])
            tags = torch.tensor([tag_of(t) for t in tokens])
            self.samples.append((ids, tags))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def collate(batch):
    ids, tags = zip(*batch)
    lengths = torch.tensor([len(i) for i in ids])
    ids = pad_sequence(ids, batch_first=True, padding_value=PAD)
    tags = pad_sequence(tags, batch_first=True, padding_value=IGNORE)
    return ids, tags, lengths


class Tagger(nn.Module):
    def __init__(self, vocab_size, dim=32, n_tags=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim, padding_idx=PAD)
        self.position = nn.Embedding(64, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.out = nn.Linear(dim, n_tags)

    def forward(self, ids):
        mask = ids == PAD
        positions = torch.arange(ids.size(1), device=ids.device)
        x = self.embedding(ids) + self.position(positions)[None]
        x = self.encoder(x, src_key_padding_mask=mask)
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    lines = read_lines()
    vocab = {"<pad>": PAD, "<unk>": UNK}
    for tokens in lines:
        for token in tokens:
            vocab.setdefault(token, len(vocab))
    cut = int(0.8 * len(lines))
    train_loader = DataLoader(Lines(lines[:cut], vocab), args.batch_size, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(Lines(lines[cut:], vocab), args.batch_size, collate_fn=collate)

    model = Tagger(len(vocab)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98), eps=1e-6)
    for epoch in range(args.epochs):
        model.train()
        total_loss, total_tokens = 0.0, 0
        for ids, tags, lengths in train_loader:
            ids, tags = ids.to(device), tags.to(device)
            n_tokens = lengths.sum().item()
            logits = model(ids)
            loss = F.cross_entropy(
                logits.view(-1, 4), tags.view(-1), ignore_index=IGNORE, reduction="sum"
            ) / max(n_tokens, 1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            total_loss += loss.item() * n_tokens
            total_tokens += n_tokens

        model.eval()
        correct = count = 0
        with torch.no_grad():
            for ids, tags, _ in test_loader:
                ids, tags = ids.to(device), tags.to(device)
                prediction = model(ids).argmax(-1)
                valid = tags != IGNORE
                correct += (prediction[valid] == tags[valid]).sum().item()
                count += valid.sum().item()
        print(
            f"epoch {epoch} | {total_tokens} tokens | loss {total_loss / total_tokens:.5f} | "
            f"tagged {correct}/{count} = {correct / count:.4f}"
        )
    torch.save(model.state_dict(), os.path.join(args.out, "tagger.pt"))


if __name__ == "__main__":
    main()
