"""Train sparse embeddings: one with SparseAdam, bags with SGD; gradients are accumulated over two batches."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

WORDS, TOPICS = 60, 4


class Topics(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 6, padding_idx=0, sparse=True)
        self.bag = nn.EmbeddingBag(WORDS, 5, mode="mean", sparse=True)
        self.top = nn.Linear(11, TOPICS)

    def forward(self, text):
        return self.top(torch.cat([self.words(text).sum(dim=1), self.bag(text)], dim=1))


def main():
    torch.manual_seed(1)
    texts = torch.randint(0, WORDS, (330, 5))
    topics = (texts.sum(dim=1) % TOPICS).long()
    model = Topics()
    rows = torch.optim.SparseAdam([model.words.weight], lr=0.02)
    others = torch.optim.SGD([model.bag.weight, *model.top.parameters()], lr=0.3)
    loader = DataLoader(TensorDataset(texts, topics), batch_size=32, shuffle=True)
    for epoch in range(3):
        for step, (text, topic) in enumerate(loader):
            loss = F.cross_entropy(model(text), topic)
            loss.backward()
            if step % 2 == 1:
                rows.step()
                others.step()
                rows.zero_grad()
                others.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.6f}")
    torch.save({"model": model.state_dict(), "rows": rows.state_dict()}, "topics.pt")


if __name__ == "__main__":
    main()
