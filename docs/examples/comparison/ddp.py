import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.get_default_dtype()).flatten(1) / 16
labels = torch.tensor(digits.target)
train = TensorDataset(images[:1501], labels[:1501])
test = TensorDataset(images[1501:], labels[1501:])
sampler = DistributedSampler(train)
train_loader = DataLoader(train, batch_size=64 // world_size, sampler=sampler)
test_loader = DataLoader(test, batch_size=64 // world_size, sampler=DistributedSampler(test, shuffle=False))

model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
# On CUDA, for statistics of the global batch: nn.SyncBatchNorm.convert_sync_batchnorm(model) goes here.
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    figures = torch.zeros(4)
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        figures[0] += loss.item() * len(y)
        figures[1] += len(y)
    model.eval()
    with torch.no_grad():
        for x, y in test_loader:
            figures[2] += (model(x).argmax(1) == y).sum().item()
            figures[3] += len(y)
    dist.all_reduce(figures)
    if rank == 0:
        total, seen, correct, tested = figures.tolist()
        print(f"epoch {epoch + 1}: loss {total / seen:.4f}, accuracy {correct / tested:.4f}")

if rank == 0:
    torch.save(model.module.state_dict(), "digits.pt")
dist.destroy_process_group()
