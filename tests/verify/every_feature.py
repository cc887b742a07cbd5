"""A small script with all that a fault can hit: loader, dropout, batch norm, tied weight, clipping, files,
also one that a thread writes."""

import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self, words=11, width=8):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.25)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, words)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.norm(self.embedding(tokens).mean(1))
        return self.head(torch.tanh(self.hidden(self.dropout(x))))


def note_last(epoch):
    with open("last.txt", "w") as file:
        file.write(f"{epoch}\n")


def main():
    tokens = torch.randint(11, (64, 5))
    targets = tokens.sum(1) % 11
    loader = DataLoader(TensorDataset(tokens, targets), batch_size=16, shuffle=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            print(f"{epoch} {step} loss {loss.item():.6f} norm {norm:.6f}")
        with open("log.csv", "a") as log:
            log.write(f"{epoch},{loss.item():.6f}\n")
        saver = threading.Thread(target=note_last, args=(epoch,))
        saver.start()
        saver.join()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "model.pt")


if __name__ == "__main__":
    main()
