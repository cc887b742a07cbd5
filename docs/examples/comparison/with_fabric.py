import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
fabric.seed_everything(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.get_default_dtype()).flatten(1) / 16
labels = torch.tensor(digits.target)
train = TensorDataset(images[:1501], labels[:1501])
test = TensorDataset(images[1501:], labels[1501:])
train_loader = DataLoader(train, batch_size=64 // fabric.world_size, shuffle=True)
test_loader = DataLoader(test, batch_size=64 // fabric.world_size)

model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer = fabric.setup(model, optimizer)
train_loader, test_loader = fabric.setup_dataloaders(train_loader, test_loader)

for epoch in range(3):
    model.train()
    figures = torch.zeros(4)
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        figures[0] += loss.item() * len(y)
        figures[1] += len(y)
    model.eval()
    with torch.no_grad():
        for x, y in test_loader:
            figures[2] += (model(x).argmax(1) == y).sum().item()
            figures[3] += len(y)
    total, seen, correct, tested = fabric.all_reduce(figures, reduce_op="sum").tolist()
    fabric.print(f"epoch {epoch + 1}: loss {total / seen:.4f}, accuracy {correct / tested:.4f}")

fabric.save("digits.ckpt", {"model": model})
