"""As neural collaborative filtering scripts: users and items embedded, negatives drawn by numpy, hit rate of the top."""

import numpy as np
import torch
import torch.nn as nn
import torch.utils.data as data

USERS, ITEMS = 40, 30


class NCFData(data.Dataset):
    def __init__(self, positives, num_ng=0, is_training=None):
        self.positives, self.num_ng, self.is_training = positives, num_ng, is_training
        self.matrix = {tuple(pair) for pair in positives}

    def ng_sample(self):
        self.negatives = []
        for u, _ in self.positives:
            for _ in range(self.num_ng):
                j = np.random.randint(ITEMS)
                while (u, j) in self.matrix:
                    j = np.random.randint(ITEMS)
                self.negatives.append([u, j])
        self.filled = self.positives + self.negatives
        self.labels = [1] * len(self.positives) + [0] * len(self.negatives)

    def __len__(self):
        return (self.num_ng + 1) * len(self.positives)

    def __getitem__(self, idx):
        pairs = self.filled if self.is_training else self.positives
        return pairs[idx][0], pairs[idx][1], self.labels[idx] if self.is_training else 0


class NCF(nn.Module):
    def __init__(self, factor=8):
        super().__init__()
        self.user_gmf, self.item_gmf = nn.Embedding(USERS, factor), nn.Embedding(ITEMS, factor)
        self.user_mlp, self.item_mlp = nn.Embedding(USERS, factor), nn.Embedding(ITEMS, factor)
        self.layers = nn.Sequential(nn.Dropout(0.1), nn.Linear(2 * factor, factor), nn.ReLU())
        self.predict_layer = nn.Linear(2 * factor, 1)
        for m in (self.user_gmf, self.item_gmf, self.user_mlp, self.item_mlp):
            nn.init.normal_(m.weight, std=0.1)

    def forward(self, user, item):
        gmf = self.user_gmf(user) * self.item_gmf(item)
        mlp = self.layers(torch.cat((self.user_mlp(user), self.item_mlp(item)), -1))
        return self.predict_layer(torch.cat((gmf, mlp), -1)).view(-1)


np.random.seed(2)
torch.manual_seed(2)
positives = [[u, (u * 7 + 3 * k) % ITEMS] for u in range(USERS) for k in range(4)]
train_dataset = NCFData(positives[:-40], 3, True)
train_loader = data.DataLoader(train_dataset, batch_size=64, shuffle=True, num_workers=0)
model = NCF()
loss_function = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
best_hr = 0
for epoch in range(3):
    model.train()
    train_loader.dataset.ng_sample()
    for user, item, label in train_loader:
        label = label.to(torch.get_default_dtype())
        model.zero_grad()
        loss = loss_function(model(user, item), label)
        loss.backward()
        optimizer.step()
    model.eval()
    HR, NDCG = [], []
    for u, gt_item in positives[-40:]:
        others = [i for i in range(ITEMS) if i != gt_item][:19]
        user, item = torch.tensor([u] * 20), torch.tensor([gt_item, *others])
        _, indices = torch.topk(model(user, item), 5)
        recommends = torch.take(item, indices).cpu().numpy().tolist()
        HR.append(int(gt_item in recommends))
        NDCG.append(np.reciprocal(np.log2(recommends.index(gt_item) + 2)) if gt_item in recommends else 0)
    print(f"epoch {epoch} loss {loss.item():.6f} HR: {np.mean(HR):.3f} NDCG: {np.mean(NDCG):.3f}")
    if np.mean(HR) > best_hr:
        best_hr = np.mean(HR)
        torch.save(model, "NCF.pth")
