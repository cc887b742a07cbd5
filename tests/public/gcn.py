"""As pytorch/examples gcn: a graph as one batch, its nodes bound to each other by a matrix; masks for the splits."""

import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class GraphConv(nn.Module):
    def __init__(self, input_dim, output_dim, use_bias=False):
        super().__init__()
        self.kernel = nn.Parameter(torch.Tensor(input_dim, output_dim))
        nn.init.xavier_normal_(self.kernel)
        self.bias = None
        if use_bias:
            self.bias = nn.Parameter(torch.Tensor(output_dim))
            nn.init.zeros_(self.bias)

    def forward(self, input_tensor, adj_mat):
        support = torch.mm(input_tensor, self.kernel)
        output = torch.mm(adj_mat, support)
        return output if self.bias is None else output + self.bias


class GCN(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, dropout_p=0.1):
        super().__init__()
        self.gc1 = GraphConv(input_dim, hidden_dim)
        self.gc2 = GraphConv(hidden_dim, output_dim, use_bias=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input_tensor, adj_mat):
        x = self.gc1(input_tensor, adj_mat)
        x = self.dropout(F.relu(x))
        return F.log_softmax(self.gc2(x, adj_mat), dim=1)


torch.manual_seed(42)
random = np.random.RandomState(42)
nodes = 60
labels = torch.tensor(random.randint(0, 3, nodes))
features = torch.tensor(random.rand(nodes, 20) + np.eye(3)[labels].repeat(7, 1)[:, :20])
features = features.to(torch.get_default_dtype())
adj = torch.tensor((random.rand(nodes, nodes) < 0.06) | np.eye(nodes, dtype=bool)).to(features.dtype)
adj = torch.maximum(adj, adj.t())
degree = adj.sum(1).pow(-0.5)
adj_mat = degree[:, None] * adj * degree[None, :]
idx = torch.randperm(nodes)
idx_test, idx_val, idx_train = idx[:20], idx[20:30], idx[30:]
gcn = GCN(20, 8, 3)
optimizer = torch.optim.Adam(gcn.parameters(), lr=1e-2, weight_decay=5e-4)
criterion = nn.NLLLoss()
start = time.time()
for epoch in range(25):
    gcn.train()
    optimizer.zero_grad()
    output = gcn(features, adj_mat)
    loss = criterion(output[idx_train], labels[idx_train])
    loss.backward()
    optimizer.step()
    if epoch % 5 == 0:
        gcn.eval()
        with torch.no_grad():
            output = gcn(features, adj_mat)
            val = criterion(output[idx_val], labels[idx_val])
            acc = (output[idx_test].argmax(dim=1) == labels[idx_test]).to(features.dtype).mean()
        print(f"Epoch {epoch:04d}, train loss {loss.item():.4f}, val {val.item():.4f}, test acc {acc:.4f}")
