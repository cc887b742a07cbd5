"""Classifies graphs with a GCN of PyTorch Geometric, in mini-batches of graphs."""

import torch
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def graph(label):
    nodes = int(torch.randint(4, 9, ()))
    edges = torch.randint(0, nodes, (2, nodes * (2 + label)))
    return Data(x=torch.randn(nodes, 6), edge_index=edges, y=torch.tensor([label]))


graphs = [graph(number % 2) for number in range(48)]
train_loader = DataLoader(graphs[:40], batch_size=8, shuffle=True)
test_loader = DataLoader(graphs[40:], batch_size=8)


class GCN(torch.nn.Module):
    def __init__(self, hidden_channels):
        super().__init__()
        self.conv1 = GCNConv(6, hidden_channels)
        self.conv2 = GCNConv(hidden_channels, hidden_channels)
        self.lin = Linear(hidden_channels, 2)

    def forward(self, x, edge_index, batch):
        x = self.conv1(x, edge_index).relu()
        x = self.conv2(x, edge_index)
        x = global_mean_pool(x, batch)
        x = torch.nn.functional.dropout(x, p=0.5, training=self.training)
        return self.lin(x)


model = GCN(hidden_channels=16)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = torch.nn.CrossEntropyLoss()
for epoch in range(2):
    model.train()
    for data in train_loader:
        loss = criterion(model(data.x, data.edge_index, data.batch), data.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{loss.item():.12g}")
    model.eval()
    correct = 0
    for data in test_loader:
        correct += int((model(data.x, data.edge_index, data.batch).argmax(dim=1) == data.y).sum())
    print(f"epoch {epoch} accuracy {correct / 8}")
