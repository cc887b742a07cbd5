"""nn.TransformerEncoder (dropout 0.1) classifies digits read row by row; sequence first."""

import argparse
import math
import os

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, dropout: float = 0.1, max_len: int = 64):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[: x.size(0)])


class RowTransformer(nn.Module):
    def __init__(self, d_model=32, nhead=4, d_hid=64, nlayers=2, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        self.embed = nn.Linear(8, d_model)
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        layers = nn.TransformerEncoderLayer(d_model, nhead, d_hid, dropout)
        self.transformer_encoder = nn.TransformerEncoder(layers, nlayers, enable_nested_tensor=False)
        self.head = nn.Linear(d_model, 10)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.transpose(0, 1)  # [rows, batch, columns]
        hidden = self.pos_encoder(self.embed(rows) * math.sqrt(self.d_model))
        hidden = self.transformer_encoder(hidden)
        return self.head(hidden.mean(dim=0))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.get_default_dtype())
    labels = torch.tensor(digits.target)
    train_loader = DataLoader(
        TensorDataset(images[:1300], labels[:1300]),
        batch_size=args.batch_size,
        shuffle=True,
    )
    valid_loader = DataLoader(TensorDataset(images[1300:], labels[1300:]), batch_size=256)

    model = RowTransformer().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, eps=1e-6)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x.to(device)), y.to(device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            total += loss.item() * len(x)
        scheduler.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for x, y in valid_loader:
                right += (model(x.to(device)).argmax(-1) == y.to(device)).sum().item()
        n = len(train_loader.dataset)
        print(f"epoch {epoch} loss {total / n:.5f} accuracy {right / len(valid_loader.dataset):.4f}")
    torch.save(model.state_dict(), os.path.join(args.out, "transformer.pt"))


if __name__ == "__main__":
    main()
