"""A mean teacher made by deepcopy, and torch's AveragedModel beside it."""

import argparse
import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 48, bias=False)
        self.bn1 = nn.BatchNorm1d(48)
        self.drop = nn.Dropout(0.2)
        self.fc2 = nn.Linear(48, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.fc1(x)))
        return self.fc2(self.drop(x))


class ModelEMA:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model)
        self.module.eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema_v, model_v in zip(self.module.state_dict().values(), model.state_dict().values()):
            if ema_v.dtype.is_floating_point:
                ema_v.mul_(self.decay).add_(model_v, alpha=1.0 - self.decay)
            else:
                ema_v.copy_(model_v)


def accuracy(model, loader, device):
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            correct += model(x.to(device)).argmax(1).eq(y.to(device)).sum().item()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--decay", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.get_default_dtype())
    y = torch.tensor(digits.target)
    train_loader = DataLoader(TensorDataset(x[:1450], y[:1450]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(x[1450:], y[1450:]), args.batch_size)

    model = Net().to(device)
    teacher = ModelEMA(model, args.decay)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(args.decay))
    swa = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        model.train()
        running_loss = running_consistency = 0.0
        for inputs, targets in train_loader:
            inputs, targets = inputs.to(device), targets.to(device)
            with torch.no_grad():
                teacher_prob = F.softmax(teacher.module(inputs), dim=1)
            logits = model(inputs)
            consistency = F.mse_loss(F.softmax(logits, dim=1), teacher_prob)
            loss = F.cross_entropy(logits, targets) + 0.5 * consistency
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            teacher.update(model)
            averaged.update_parameters(model)
            running_loss += loss.item() * inputs.size(0)
            running_consistency += consistency.item() * inputs.size(0)
        swa.update_parameters(model)
        n = len(train_loader.dataset)
        print(
            f"epoch {epoch}: loss {running_loss / n:.5f} consistency {running_consistency / n:.6f} "
            f"student {accuracy(model, test_loader, device):.4f} "
            f"teacher {accuracy(teacher.module, test_loader, device):.4f} "
            f"averaged {accuracy(averaged, test_loader, device):.4f}"
        )

    update_bn(train_loader, swa, device=device)
    print(f"swa {accuracy(swa, test_loader, device):.4f}, averaged {int(swa.n_averaged)} models")
    torch.save(
        {
            "student": model.state_dict(),
            "teacher": teacher.module.state_dict(),
            "swa": swa.state_dict(),
        },
        os.path.join(args.out, "ema.pt"),
    )


if __name__ == "__main__":
    main()
