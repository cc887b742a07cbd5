"""Metrics by numpy and scikit-learn."""

import argparse
import os

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import confusion_matrix, f1_score, roc_auc_score
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset


def digits_loaders(batch_size):
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.get_default_dtype())
    y = torch.tensor(digits.target)
    return (
        DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=batch_size, shuffle=True),
        DataLoader(TensorDataset(x[1400:], y[1400:]), batch_size=batch_size),
    )


def tumour_loaders(batch_size):
    data = load_breast_cancer()
    features = StandardScaler().fit_transform(data.data)
    x = torch.as_tensor(features, dtype=torch.get_default_dtype())
    y = torch.as_tensor(data.target, dtype=torch.get_default_dtype())
    return (
        DataLoader(TensorDataset(x[:450], y[:450]), batch_size=batch_size, shuffle=True),
        DataLoader(TensorDataset(x[450:], y[450:]), batch_size=batch_size),
    )


def train_digits(args, device):
    train_loader, test_loader = digits_loaders(args.batch_size)
    model = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        model.train()
        accuracies, losses = [], []
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            loss = criterion(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prediction = np.argmax(out.detach().cpu().numpy(), axis=1)
            accuracies.append(np.mean(prediction == y.cpu().numpy()))
            losses.append(loss.item())
        model.eval()
        y_true, y_pred = [], []
        with torch.no_grad():
            for x, y in test_loader:
                logits = model(x.to(device))
                y_pred.extend(logits.argmax(1).cpu().numpy())
                y_true.extend(y.numpy())
        macro = f1_score(y_true, y_pred, average="macro")
        print(f"digits {epoch}: loss {np.mean(losses):.5f} acc {np.mean(accuracies):.4f} f1 {macro:.4f}")
    matrix = confusion_matrix(y_true, y_pred)
    print(matrix)
    np.save(os.path.join(args.out, "confusion.npy"), matrix)


def train_tumours(args, device):
    train_loader, test_loader = tumour_loaders(args.batch_size)
    model = nn.Sequential(nn.Linear(30, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([0.6], device=device))
    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x.to(device)).squeeze(1), y.to(device))
            loss.backward()
            optimizer.step()
        model.eval()
        scores, labels = [], []
        with torch.no_grad():
            for x, y in test_loader:
                scores.append(torch.sigmoid(model(x.to(device))).squeeze(1))
                labels.append(y)
        scores = torch.cat(scores).cpu().numpy()
        labels = torch.cat(labels).numpy()
        auc = roc_auc_score(labels, scores)
        print(
            f"tumours {epoch}: loss {loss.item():.5f} auc {auc:.4f} f1 {f1_score(labels, scores > 0.5):.4f}"
        )
    np.savetxt(os.path.join(args.out, "scores.txt"), scores, fmt="%.5f")
    torch.save(model.state_dict(), os.path.join(args.out, "tumours.pt"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=123)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_digits(args, device)
    train_tumours(args, device)
