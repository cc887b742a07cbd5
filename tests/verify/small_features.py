"""A script with all that a small fault can hit: batches of 64 and a last one of 21, batch norm with small
variances, dropout, Adam with weight decay, an evaluation by running statistics."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self, inputs=12, width=16, classes=5):
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = torch.tanh(self.norm(self.hidden(x)))
        return self.head(F.dropout(x, 0.25, self.training))


def main():
    torch.manual_seed(0)
    inputs = 0.05 * torch.randn(149, 12)
    targets = (inputs.sum(1) * 10).long() % 5
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=64, shuffle=True)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, weight_decay=0.1)
    for epoch in range(3):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{epoch} loss {loss.item():.6f}")
        model.eval()
        with torch.no_grad():
            print(f"{epoch} evaluation {F.cross_entropy(model(inputs), targets).item():.6f}")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
