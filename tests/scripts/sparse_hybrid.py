"""Train towers of sparse embeddings and bags: SparseAdam, Adagrad, AdamW; weights and states are saved."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

USERS, ITEMS, TAGS = 50, 41, 19


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, 8, sparse=True)
        self.items = nn.Embedding(ITEMS, 8, padding_idx=0, sparse=True)
        self.tags = nn.EmbeddingBag(TAGS, 8, mode="sum", sparse=True)
        self.merge = nn.Linear(24, 8)

    def forward(self, user, history, tags, weights):
        seen = self.items(history).mean(dim=1)
        tagged = self.tags(tags, per_sample_weights=weights)
        return self.merge(torch.cat([self.users(user), seen, tagged], dim=1))


@torch.no_grad()
def hit_rate(model, tensors):
    """How often the item is among the best five of all: a look at the whole matrix."""
    model.eval()
    user, history, tags, weights, item = tensors
    scores = model(user, history, tags, weights) @ model.items.weight.t()
    hits = (scores.topk(5, dim=1).indices == item[:, None]).any(dim=1)
    model.train()
    return hits.float().mean().item()


def save(model, optimizers):
    states = {type(optimizer).__name__: optimizer.state_dict() for optimizer in optimizers}
    torch.save({"model": model.state_dict(), "states": states}, "towers.pt")


def resume(model, rows):
    saved = torch.load("towers.pt")
    model.load_state_dict(saved["model"])
    rows.load_state_dict(saved["states"]["SparseAdam"])


def main():
    torch.manual_seed(3)
    count = 300
    user = torch.randint(0, USERS, (count,))
    history = torch.randint(0, ITEMS, (count, 6))
    tags = torch.randint(0, TAGS, (count, 3))
    weights = torch.rand(count, 3)
    item = (user + history[:, 0]) % ITEMS
    tensors = (user, history, tags, weights, item)

    model = Towers()
    rows = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=0.03)
    tags_rows = torch.optim.Adagrad([model.tags.weight], lr=0.1)
    dense = torch.optim.AdamW(model.merge.parameters(), lr=0.01)
    optimizers = (rows, tags_rows, dense)
    loader = DataLoader(TensorDataset(*tensors), batch_size=32, shuffle=True)
    for epoch in range(3):
        for step, (*features, wanted) in enumerate(loader):
            out = model(*features)
            loss = F.mse_loss((out * model.items(wanted)).sum(dim=1), torch.ones(len(wanted)))
            loss.backward()
            if step % 2 == 1:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        norm = model.users.weight.norm().item()
        print(f"epoch {epoch}: loss {loss.item():.6f}, norm {norm:.6f}, hits {hit_rate(model, tensors):.3f}")
        save(model, optimizers)
        if epoch == 1:
            resume(model, rows)


if __name__ == "__main__":
    main()
