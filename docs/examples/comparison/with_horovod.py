import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.get_default_dtype()).flatten(1) / 16
labels = torch.tensor(digits.target)
train = TensorDataset(images[:1501], labels[:1501])
test = TensorDataset(images[1501:], labels[1501:])
place = {"num_replicas": hvd.size(), "rank": hvd.rank()}
sampler = DistributedSampler(train, **place)
train_loader = DataLoader(train, batch_size=64 // hvd.size(), sampler=sampler)
test_sampler = DistributedSampler(test, shuffle=False, **place)
test_loader = DataLoader(test, batch_size=64 // hvd.size(), sampler=test_sampler)

# For statistics of the global batch: hvd.SyncBatchNorm(64) in place of nn.BatchNorm1d(64).
model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    figures = torch.zeros(4)
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        figures[0] += loss.item() * len(y)
        figures[1] += len(y)
    model.eval()
    with torch.no_grad():
        for x, y in test_loader:
            figures[2] += (model(x).argmax(1) == y).sum().item()
            figures[3] += len(y)
    total, seen, correct, tested = hvd.allreduce(figures, op=hvd.Sum).tolist()
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: loss {total / seen:.4f}, accuracy {correct / tested:.4f}")

if hvd.rank() == 0:
    torch.save(model.state_dict(), "digits.pt")
