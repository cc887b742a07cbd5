import oneflow as flow
from oneflow import nn
from oneflow.nn.parallel import DistributedDataParallel
from oneflow.utils.data import DataLoader, TensorDataset
from oneflow.utils.data.distributed import DistributedSampler
from sklearn.datasets import load_digits

rank, world_size = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(0)

digits = load_digits()
images = flow.tensor(digits.images, dtype=flow.float32).flatten(1) / 16
labels = flow.tensor(digits.target)
train = TensorDataset(images[:1501], labels[:1501])
sampler = DistributedSampler(train)
train_loader = DataLoader(train, batch_size=64 // world_size, sampler=sampler)

model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)).to("cuda")
model = DistributedDataParallel(model)
optimizer = flow.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()

for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x.to("cuda")), y.to("cuda"))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch + 1}: loss of this rank's last rows {loss.item():.4f}")

if rank == 0:
    flow.save(model.state_dict(), "digits")
