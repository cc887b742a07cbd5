"""As pytorch/examples siamese_network: pairs drawn at random when they are read, two passes through one body."""

import random

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, start, stop):
        digits = load_digits()
        self.images = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype())[start:stop, None]
        self.targets = torch.tensor(digits.target)[start:stop]
        self.groups = {i: (self.targets == i).nonzero().flatten().tolist() for i in range(10)}

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        selected = random.randint(0, 9)
        first = random.choice(self.groups[selected])
        if index % 2 == 0:
            second, label = random.choice(self.groups[selected]), 1
        else:
            other = random.choice([c for c in range(10) if c != selected])
            second, label = random.choice(self.groups[other]), 0
        return self.images[first], self.images[second], torch.tensor(label, dtype=self.images.dtype)


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 32))
        self.fc = nn.Sequential(nn.Linear(64, 32), nn.ReLU(inplace=True), nn.Linear(32, 1))
        self.sigmoid = nn.Sigmoid()
        self.body.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward_once(self, x):
        output = self.body(x)
        return output.view(output.size()[0], -1)

    def forward(self, input1, input2):
        output = torch.cat((self.forward_once(input1), self.forward_once(input2)), 1)
        return self.sigmoid(self.fc(output))


torch.manual_seed(1)
random.seed(1)
model = SiameseNetwork()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
criterion = nn.BCELoss()
for epoch in range(2):
    model.train()
    for i, (a, b, targets) in enumerate(DataLoader(Pairs(0, 800), batch_size=64, shuffle=True)):
        optimizer.zero_grad()
        outputs = model(a, b).squeeze()
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        if i % 4 == 0:
            print(f"epoch {epoch} batch {i} loss {loss.item():.6f}")
    model.eval()
    total, correct = 0.0, 0
    with torch.no_grad():
        for a, b, targets in DataLoader(Pairs(800, 1100), batch_size=100):
            outputs = model(a, b).squeeze()
            total += criterion(outputs, targets).sum().item()
            pred = torch.where(outputs > 0.5, 1, 0)
            correct += pred.eq(targets.view_as(pred)).sum().item()
    print(f"test loss {total / 300:.6f} correct {correct}")
