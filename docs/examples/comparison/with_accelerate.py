import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
set_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.get_default_dtype()).flatten(1) / 16
labels = torch.tensor(digits.target)
train = TensorDataset(images[:1501], labels[:1501])
test = TensorDataset(images[1501:], labels[1501:])
train_loader = DataLoader(train, batch_size=64, shuffle=True)
test_loader = DataLoader(test, batch_size=64)

model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)

for epoch in range(3):
    model.train()
    total = 0.0
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += accelerator.gather_for_metrics(loss.detach().repeat(len(y))).sum().item()
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in test_loader:
            answers, targets = accelerator.gather_for_metrics((model(x).argmax(1), y))
            correct += (answers == targets).sum().item()
    accelerator.print(f"epoch {epoch + 1}: loss {total / len(train):.4f}, accuracy {correct / len(test):.4f}")

accelerator.wait_for_everyone()
accelerator.save(accelerator.unwrap_model(model).state_dict(), "digits.pt")
accelerator.end_training()
