"""Trains and evaluates a classifier with Ignite's engines, metrics and a checkpoint."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
inputs = torch.randn(48, 10)
targets = inputs[:, :3].argmax(1)
train = DataLoader(TensorDataset(inputs[:32], targets[:32]), batch_size=8, shuffle=True)
valid = DataLoader(TensorDataset(inputs[32:], targets[32:]), batch_size=8)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion)
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(criterion)})


@trainer.on(Events.ITERATION_COMPLETED)
def log_loss(engine):
    print(f"{engine.state.iteration} {engine.state.output:.12g}")


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    evaluator.run(valid)
    print(*(f"{name} {value:.12g}" for name, value in sorted(evaluator.state.metrics.items())))


saver = Checkpoint({"model": model, "optimizer": optimizer}, DiskSaver("saved", create_dir=True), n_saved=1)
trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
trainer.run(train, max_epochs=2)
