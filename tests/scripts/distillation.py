"""Knowledge distillation from a frozen teacher, with hints; layers of the student unfreeze one by one."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, 10)
        self.drop = nn.Dropout(dropout)
        self.temperature = 4.0

    def forward(self, x):
        hidden = F.silu(self.stem(x))
        features = F.silu(self.body(self.drop(hidden)))
        return self.head(features), features, self.temperature, len(x)


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x)[0].argmax(1) == y).double().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--alpha", type=float, default=0.7)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(6)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16.0, dtype=torch.get_default_dtype()), torch.tensor(y)
    loader = DataLoader(TensorDataset(X[:1000], y[:1000]), args.batch_size, shuffle=True)
    test_x, test_y = X[1000:].to(device), y[1000:].to(device)

    teacher = Net(48).to(device)
    optimizer = torch.optim.SGD(teacher.parameters(), lr=args.lr, momentum=0.9)
    for x, target in loader:
        optimizer.zero_grad()
        F.cross_entropy(teacher(x.to(device))[0], target.to(device)).backward()
        optimizer.step()
    print(f"teacher {accuracy(teacher, test_x, test_y):.4f}")
    torch.save(teacher.state_dict(), os.path.join(args.out, "teacher.pt"))

    teacher = Net(48).to(device)
    teacher.load_state_dict(torch.load(os.path.join(args.out, "teacher.pt"), weights_only=True))
    teacher.requires_grad_(False).eval()
    student, regressor = Net(16, dropout=0.1).to(device), nn.Linear(16, 48).to(device)
    student.stem.requires_grad_(False)
    student.body.requires_grad_(False)
    optimizer = torch.optim.SGD([*student.parameters(), *regressor.parameters()], lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        if epoch == 1:
            student.body.requires_grad_(True)
        if epoch == 2:
            for p in student.stem.parameters():
                p.requires_grad = True
        student.train()
        sums = torch.zeros(3)
        for x, target in loader:
            x, target = x.to(device), target.to(device)
            with torch.no_grad():
                teacher_logits, teacher_features, temperature, n = teacher(x)
            logits, features, _, _ = student(x)
            soft = F.kl_div(
                F.log_softmax(logits / temperature, dim=1),
                F.softmax(teacher_logits / temperature, dim=1),
                reduction="batchmean",
            )
            hint = F.mse_loss(regressor(features), teacher_features)
            hard = F.cross_entropy(logits, target)
            loss = args.alpha * temperature**2 * soft + (1 - args.alpha) * hard + hint
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.stack([soft, hint, hard]).detach().cpu() * n
        trainable = sum(p.numel() for p in student.parameters() if p.requires_grad)
        means = " ".join(f"{v:.6f}" for v in (sums / len(loader.dataset)).tolist())
        print(f"epoch {epoch}: {means} student {accuracy(student, test_x, test_y):.4f} trainable {trainable}")
    torch.save(student.state_dict(), os.path.join(args.out, "student.pt"))


if __name__ == "__main__":
    main()
