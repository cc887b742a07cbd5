"""`GradScaler` with float16 autocast; faulty readings (infinite) make some steps be skipped."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--init-scale", type=float, default=2.0**16)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(12)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y = load_diabetes(return_X_y=True)
    X = torch.tensor(X * 20, dtype=torch.get_default_dtype())
    y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.get_default_dtype()).unsqueeze(1)
    X[[17, 200, 333], [2, 5, 8]] = float("inf")
    train_loader = DataLoader(TensorDataset(X[:400], y[:400]), args.batch_size, shuffle=True)

    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    net = net.to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr, eps=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=args.init_scale, growth_interval=5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    history = []
    for epoch in range(args.epochs):
        running, skipped = 0.0, 0
        for i, (x, target) in enumerate(train_loader):
            with torch.autocast(device_type=device, dtype=torch.float16):
                loss = F.mse_loss(net(x.to(device)), target.to(device)) / args.accumulate
            scaler.scale(loss).backward()
            if torch.isfinite(loss):
                running += loss.item() * args.accumulate
            if (i + 1) % args.accumulate == 0 or i + 1 == len(train_loader):
                scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if scaler.get_scale() < before:
                    skipped += 1
                else:
                    scheduler.step()
                    history.append(norm.item())
        print(f"epoch {epoch}: loss {running:.3f} skipped {skipped} scale {scaler.get_scale()}")

    net.eval()
    with torch.no_grad():
        error = F.l1_loss(net(X[400:].to(device)), y[400:].to(device)).item()
    print(f"mean absolute error {error:.3f}, {len(history)} steps, first norm {history[0]:.3f}")
    torch.save(
        {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()},
        os.path.join(args.out, "amp_fp16.pt"),
    )


if __name__ == "__main__":
    main()
