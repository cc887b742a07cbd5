"""Train a wide-and-deep model of clicks on embedding tables; ids are hashes, without a bound."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import ronde

FIELDS = 5


class WideAndDeep(nn.Module):
    def __init__(self, dim):
        super().__init__()
        adagrad = ronde.table.RowwiseAdagrad(lr=0.1, initial_accumulator_value=0.1)
        self.deep = ronde.EmbeddingTable(dim, optimizer=adagrad)
        self.wide = ronde.EmbeddingTable(1, optimizer=ronde.table.FTRL(lr=0.2), init=ronde.table.Zeros())
        self.top = nn.Sequential(
            nn.Linear(FIELDS * dim + 3, 32, bias=False),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(32, 1),
        )

    def forward(self, dense, ids):
        deep = torch.cat([dense, self.deep(ids).flatten(1)], dim=1)
        return (self.top(deep) + self.wide(ids).sum(dim=1)).squeeze(1)


def clicks(samples):
    """Ids that come unequally often, and clicks that a hidden model makes of them."""
    generator = torch.Generator().manual_seed(7)
    number = (torch.rand(samples, FIELDS, generator=generator, dtype=torch.float64) ** 3 * 40).long()
    ids = (number + 1) * 0x1B873593 * 2**20 + torch.arange(FIELDS) * 2**50
    dense = torch.randn(samples, 3, generator=generator, dtype=torch.float64).to(torch.get_default_dtype())
    score = torch.cos(number.double() * (1 + torch.arange(FIELDS))).sum(1) + dense[:, 0].double()
    return dense, ids, (score > 0).to(torch.get_default_dtype())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    torch.manual_seed(0)
    dense, ids, clicked = clicks(620)
    train_set = TensorDataset(dense[:500], ids[:500], clicked[:500])
    test_set = TensorDataset(dense[500:], ids[500:], clicked[500:])
    model = WideAndDeep(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        for x, i, y in DataLoader(train_set, args.batch_size, shuffle=True):
            loss = F.binary_cross_entropy_with_logits(model(x, i), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(((model(x, i) > 0) == (y > 0)).sum().item() for x, i, y in DataLoader(test_set, 64))
        print(
            f"epoch {epoch}: loss {loss.item():.6f}, {len(model.deep)} rows, {right} of {len(test_set)} right"
        )
    torch.save(model.state_dict(), "recommender.pt")


if __name__ == "__main__":
    main()
