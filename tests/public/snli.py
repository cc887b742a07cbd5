"""As pytorch/examples snli: sequence-first batches, two sentences through one encoder, the best model kept by name."""

import glob
import os

import torch
import torch.nn as nn


class Bottle(nn.Module):
    def forward(self, input):
        if len(input.size()) <= 2:
            return super().forward(input)
        size = input.size()[:2]
        out = super().forward(input.view(size[0] * size[1], -1))
        return out.view(size[0], size[1], -1)


class Linear(Bottle, nn.Linear):
    pass


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(input_size=12, hidden_size=10, num_layers=1, bidirectional=True)

    def forward(self, inputs):
        batch_size = inputs.size()[1]
        h0 = c0 = inputs.new_zeros((2, batch_size, 10))
        _, (ht, _) = self.rnn(inputs, (h0, c0))
        return ht[-2:].transpose(0, 1).contiguous().view(batch_size, -1)


class SNLIClassifier(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.embed = nn.Embedding(words, 16)
        self.projection = Linear(16, 12)
        self.encoder = Encoder()
        self.relu = nn.ReLU()
        self.out = nn.Sequential(Linear(40, 24), self.relu, nn.Dropout(0.2), Linear(24, 3))

    def forward(self, batch):
        premise = self.relu(self.projection(self.embed(batch.premise).detach()))
        hypothesis = self.relu(self.projection(self.embed(batch.hypothesis).detach()))
        return self.out(torch.cat([self.encoder(premise), self.encoder(hypothesis)], 1))


class Batch:
    def __init__(self, premise, hypothesis, label):
        self.premise, self.hypothesis, self.label = premise, hypothesis, label
        self.batch_size = len(label)


def batches(count, generator):
    for _ in range(count):
        premise = torch.randint(2, 30, (7, 16), generator=generator)
        hypothesis = torch.randint(2, 30, (5, 16), generator=generator)
        yield Batch(premise, hypothesis, (premise[0] + hypothesis[0]) % 3)


torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
model = SNLIClassifier(30)
criterion = nn.CrossEntropyLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.2)
iterations, best_dev_acc = 0, -1
os.makedirs("results", exist_ok=True)
for epoch in range(2):
    n_correct, n_total = 0, 0
    for batch in batches(10, generator):
        model.train()
        opt.zero_grad()
        iterations += 1
        answer = model(batch)
        n_correct += (torch.max(answer, 1)[1].view(batch.label.size()) == batch.label).sum().item()
        n_total += batch.batch_size
        loss = criterion(answer, batch.label)
        loss.backward()
        opt.step()
        if iterations % 5 == 0:
            model.eval()
            n_dev_correct, dev_loss = 0, 0
            with torch.no_grad():
                for dev_batch in batches(3, torch.Generator().manual_seed(9)):
                    answer = model(dev_batch)
                    n_dev_correct += (torch.max(answer, 1)[1] == dev_batch.label).sum().item()
                    dev_loss = criterion(answer, dev_batch.label)
            dev_acc = 100.0 * n_dev_correct / 48
            print(
                f"{iterations} {loss.item():.6f} {dev_loss.item():.6f} {n_correct / n_total:.3f} {dev_acc:.3f}"
            )
            if dev_acc > best_dev_acc:
                best_dev_acc = dev_acc
                prefix = os.path.join("results", "best_snapshot")
                path = f"{prefix}_devacc_{dev_acc:.2f}_iter_{iterations}_model.pt"
                torch.save(model.state_dict(), path)
                for f in glob.glob(prefix + "*"):
                    if f != path:
                        os.remove(f)
