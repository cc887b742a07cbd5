"""Random augmentation in the data set, done by two loader workers."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class AugmentedDigits(Dataset):
    def __init__(self, images, labels, train):
        self.images = images
        self.labels = labels
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            dy, dx = random.randint(-1, 1), random.randint(-1, 1)
            image = np.roll(image, (dy, dx), axis=(0, 1))
            image = image + np.random.normal(0.0, 0.05, size=image.shape)
        image = torch.as_tensor(image, dtype=torch.get_default_dtype()).unsqueeze(0)
        if self.train and torch.rand(1).item() < 0.3:
            image = image * (0.8 + 0.4 * torch.rand(1))
        return image, int(self.labels[index])


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(96, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("."))
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    digits = load_digits()
    images = digits.images / 16.0
    train_set = AugmentedDigits(images[:1500], digits.target[:1500], train=True)
    test_set = AugmentedDigits(images[1500:], digits.target[1500:], train=False)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(test_set, 128, num_workers=args.workers)

    model = build_model().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, epochs=args.epochs, steps_per_epoch=len(train_loader)
    )
    for epoch in range(1, args.epochs + 1):
        model.train()
        running = 0.0
        for step, (images, labels) in enumerate(train_loader, start=1):
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += loss.item()
            if step % 8 == 0:
                print(f"[{epoch}, {step:3d}] loss: {running / 8:.4f} mean pixel {images.mean().item():.5f}")
                running = 0.0
        model.eval()
        correct = 0
        with torch.no_grad():
            for images, labels in test_loader:
                correct += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
        print(f"epoch {epoch}: {correct}/{len(test_set)} correct")
    torch.save(model.state_dict(), args.out / "augmented.pt")


if __name__ == "__main__":
    main()
