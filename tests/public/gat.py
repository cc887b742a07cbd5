"""As pytorch/examples gat: attention among the nodes of one graph, several heads, a tuple as the only argument."""

import torch
import torch.nn.functional as F
from torch import nn


class GraphAttentionLayer(nn.Module):
    def __init__(self, in_features, out_features, n_heads, concat=False, dropout=0.2):
        super().__init__()
        self.n_heads, self.concat, self.dropout = n_heads, concat, dropout
        self.n_hidden = out_features // n_heads if concat else out_features
        self.W = nn.Parameter(torch.empty(size=(in_features, self.n_hidden * n_heads)))
        self.a = nn.Parameter(torch.empty(size=(n_heads, 2 * self.n_hidden, 1)))
        self.leakyrelu = nn.LeakyReLU(0.2)
        self.softmax = nn.Softmax(dim=1)
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def scores(self, h):
        source = torch.matmul(h, self.a[:, : self.n_hidden, :])
        target = torch.matmul(h, self.a[:, self.n_hidden :, :])
        return self.leakyrelu(source + target.mT)

    def forward(self, h, adj_mat):
        n_nodes = h.shape[0]
        h = torch.mm(h, self.W)
        h = F.dropout(h, self.dropout, training=self.training)
        h = h.view(n_nodes, self.n_heads, self.n_hidden).permute(1, 0, 2)
        e = self.scores(h)
        attention = torch.where(adj_mat > 0, e, -9e16 * torch.ones_like(e))
        attention = F.softmax(attention, dim=-1)
        attention = F.dropout(attention, self.dropout, training=self.training)
        h_prime = torch.matmul(attention, h)
        if self.concat:
            return h_prime.permute(1, 0, 2).contiguous().view(n_nodes, self.n_heads * self.n_hidden)
        return h_prime.mean(dim=0)


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.gat1 = GraphAttentionLayer(16, 16, 4, concat=True)
        self.gat2 = GraphAttentionLayer(16, 3, 1)

    def forward(self, input_tensor, adj_mat):
        x = F.elu(self.gat1(input_tensor, adj_mat))
        return F.log_softmax(self.gat2(x, adj_mat), dim=1)


def train_iter(epoch, model, optimizer, criterion, input, target, mask_train, mask_val):
    model.train()
    optimizer.zero_grad()
    output = model(*input)
    loss = criterion(output[mask_train], target[mask_train])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        output = model(*input)
        right = (output[mask_val].argmax(dim=1) == target[mask_val]).sum() / len(mask_val)
    if epoch % 5 == 0:
        print(f"Epoch: {epoch} loss_train: {loss.item():.4f} acc_val: {right.item():.4f}")


torch.manual_seed(13)
nodes = 50
target = torch.randint(0, 3, (nodes,))
features = torch.randn(nodes, 16) + F.one_hot(target, 16)
adj = (torch.rand(nodes, nodes) < 0.1).to(features.dtype)
adj = torch.maximum(adj, torch.eye(nodes, dtype=features.dtype))
gat = GAT()
optimizer = torch.optim.Adam(gat.parameters(), lr=5e-3, weight_decay=5e-4)
order = torch.randperm(nodes)
for epoch in range(20):
    train_iter(epoch, gat, optimizer, nn.NLLLoss(), (features, adj), target, order[:35], order[35:])
