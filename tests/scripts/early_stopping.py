"""Stop when the validation accuracy no longer rises, then test the best checkpoint."""

import argparse
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopping:
    def __init__(self, patience, path):
        self.patience = patience
        self.path = path
        self.best = None
        self.counter = 0
        self.early_stop = False

    def __call__(self, score, model):
        if self.best is None or score > self.best:
            self.best = score
            self.counter = 0
            torch.save(model.state_dict(), self.path)
        else:
            self.counter += 1
            print(f"EarlyStopping counter: {self.counter} out of {self.patience}")
            if self.counter >= self.patience:
                self.early_stop = True


def run(model, loader, criterion, device, optimizer=None):
    training = optimizer is not None
    model.train(training)
    total_loss, correct, count = 0.0, 0, 0
    with torch.set_grad_enabled(training):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            logits = model(x)
            loss = criterion(logits, y)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total_loss += loss.item() * y.size(0)
            correct += (logits.argmax(1) == y).sum().item()
            count += y.size(0)
    return total_loss / count, correct / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    os.makedirs(args.out, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    X, y = load_digits(return_X_y=True)
    X_train, X_rest, y_train, y_rest = train_test_split(X / 16, y, test_size=0.4, random_state=1)
    X_val, X_test, y_val, y_test = train_test_split(X_rest, y_rest, test_size=0.5, random_state=1)

    def loader(inputs, labels, shuffle=False):
        inputs = torch.tensor(inputs, dtype=torch.get_default_dtype())
        dataset = TensorDataset(inputs, torch.tensor(labels))
        return DataLoader(dataset, batch_size=args.batch_size, shuffle=shuffle)

    train_loader = loader(X_train, y_train, shuffle=True)
    val_loader = loader(X_val, y_val)
    test_loader = loader(X_test, y_test)

    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    scheduler = ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=1)
    best_path = os.path.join(args.out, "best.pt")
    stopper = EarlyStopping(args.patience, best_path)

    for epoch in range(args.epochs):
        train_loss, train_acc = run(model, train_loader, criterion, device, optimizer)
        val_loss, val_acc = run(model, val_loader, criterion, device)
        scheduler.step(val_loss)
        lr = optimizer.param_groups[0]["lr"]
        print(
            f"epoch {epoch:2d} train {train_loss:.4f}/{train_acc:.4f} "
            f"val {val_loss:.4f}/{val_acc:.4f} lr {lr:g}"
        )
        stopper(val_acc, model)
        if stopper.early_stop:
            print(f"Early stopping at epoch {epoch}")
            break

    model.load_state_dict(torch.load(best_path, map_location=device))
    test_loss, test_acc = run(model, test_loader, criterion, device)
    print(f"best val accuracy {stopper.best:.4f}, test loss {test_loss:.4f} accuracy {test_acc:.4f}")


if __name__ == "__main__":
    main()
