"""As the mixup scripts for CIFAR: pictures mixed with a shuffled batch, a criterion for two labels, a block net."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_planes)
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=1, padding=1, bias=False)
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False))

    def forward(self, x):
        out = F.silu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        out = self.conv2(F.silu(self.bn2(out)))
        out += shortcut
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.layer1 = self._make_layer(8, 8, 1)
        self.layer2 = self._make_layer(8, 16, 2)
        self.linear = nn.Linear(16, 10)

    def _make_layer(self, in_planes, planes, stride):
        return nn.Sequential(BasicBlock(in_planes, planes, stride), BasicBlock(planes, planes))

    def forward(self, x):
        out = self.layer2(self.layer1(self.conv1(x)))
        out = F.avg_pool2d(out, 4)
        return self.linear(out.view(out.size(0), -1))


def mixup_data(x, y, alpha=1.0):
    lam = np.random.beta(alpha, alpha) if alpha > 0 else 1
    index = torch.randperm(x.size()[0])
    return lam * x + (1 - lam) * x[index, :], y, y[index], lam


def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)


def adjust_learning_rate(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.05 * (0.1 if epoch >= 1 else 1.0)


torch.manual_seed(20)
np.random.seed(20)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype())[:, None]
labels = torch.tensor(digits.target)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images[:500], labels[:500]), batch_size=40, shuffle=True
)
net, criterion = Net(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
best_acc = 0
for epoch in range(2):
    net.train()
    train_loss, correct, total = 0, 0, 0
    for inputs, targets in loader:
        inputs, targets_a, targets_b, lam = mixup_data(inputs, targets)
        outputs = net(inputs)
        loss = mixup_criterion(criterion, outputs, targets_a, targets_b, lam)
        train_loss += loss.data.item()
        _, predicted = torch.max(outputs.data, 1)
        total += targets.size(0)
        correct += lam * predicted.eq(targets_a.data).cpu().sum().to(images.dtype)
        correct += (1 - lam) * predicted.eq(targets_b.data).cpu().sum().to(images.dtype)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(
        f"Loss: {train_loss / len(loader):.3f} | Acc: {100.0 * correct / total:.3f}% ({correct:.4f}/{total})"
    )
    net.eval()
    with torch.no_grad():
        acc = 100.0 * net(images[500:700]).max(1)[1].eq(labels[500:700]).sum().item() / 200
    if acc > best_acc:
        best_acc = acc
        torch.save({"net": net, "acc": acc, "epoch": epoch, "rng_state": torch.get_rng_state()}, "best.t7")
    adjust_learning_rate(optimizer, epoch + 1)
