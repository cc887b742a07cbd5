"""As pytorch/examples mnist_forward_forward: each layer trains by itself, with an optimizer of its own."""

import torch
import torch.nn as nn
from sklearn.datasets import load_digits


def overlay(x, y, classes=10):
    x_ = x.clone()
    x_[:, :classes] *= 0.0
    x_[range(x.shape[0]), y] = x.max()
    return x_


def negatives(y):
    y_neg = y.clone()
    for idx, y_i in enumerate(y):
        allowed = list(range(10))
        allowed.remove(y_i.item())
        y_neg[idx] = torch.tensor(allowed)[torch.randint(len(allowed), size=(1,))].item()
    return y_neg


class Layer(nn.Linear):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.relu = nn.ReLU()
        self.opt = torch.optim.SGD(self.parameters(), lr=0.1)
        self.threshold, self.num_epochs = 2.0, 10

    def forward(self, x):
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(torch.mm(direction, self.weight.T) + self.bias.unsqueeze(0))

    def train(self, x_pos, x_neg=None):
        if x_neg is None:
            return super().train(x_pos)
        for i in range(self.num_epochs):
            g_pos = self.forward(x_pos).pow(2).mean(1)
            g_neg = self.forward(x_neg).pow(2).mean(1)
            loss = torch.log(
                1 + torch.exp(torch.cat([-g_pos + self.threshold, g_neg - self.threshold]))
            ).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if i % 5 == 0:
                print(f"Loss: {loss.item():.6f}")
        return self.forward(x_pos).detach(), self.forward(x_neg).detach()


class Net(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = [Layer(dims[d], dims[d + 1]) for d in range(len(dims) - 1)]

    def predict(self, x):
        goodness_per_label = []
        for label in range(10):
            h, goodness = overlay(x, label), []
            for layer in self.layers:
                h = layer(h)
                goodness += [h.pow(2).mean(1)]
            goodness_per_label += [sum(goodness).unsqueeze(1)]
        return torch.cat(goodness_per_label, 1).argmax(1)

    def train_net(self, x_pos, x_neg):
        h_pos, h_neg = x_pos, x_neg
        for i, layer in enumerate(self.layers):
            print("training layer", i)
            h_pos, h_neg = layer.train(h_pos, h_neg)


torch.manual_seed(1)
digits = load_digits()
x_all = torch.tensor(digits.data / 16, dtype=torch.get_default_dtype())
y_all = torch.tensor(digits.target)
x, y = next(
    iter(
        torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x_all, y_all), batch_size=200, shuffle=True
        )
    )
)
net = Net([64, 48, 32])
net.train_net(overlay(x, y), overlay(x, negatives(y)))
print("Train error:", 1.0 - net.predict(x).eq(y).to(x.dtype).mean().item())
print("Test error:", 1.0 - net.predict(x_all[-100:]).eq(y_all[-100:]).to(x.dtype).mean().item())
