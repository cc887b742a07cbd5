"""Trains a classifier with Composer's Trainer, label smoothing and a cosine schedule."""

import torch
from composer import Trainer
from composer.algorithms import LabelSmoothing
from composer.core import Callback
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingScheduler, DecoupledSGDW
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(40, 1, 8, 8)
targets = inputs.mean((1, 2, 3)).gt(0).long()
train = DataLoader(TensorDataset(inputs[:32], targets[:32]), batch_size=8, shuffle=True)
evaluation = DataLoader(TensorDataset(inputs[32:], targets[32:]), batch_size=8)
network = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(8 * 36, 32),
    nn.ReLU(),
    nn.Linear(32, 2),
)
model = ComposerClassifier(module=network, num_classes=2)


class Show(Callback):
    def batch_end(self, state, logger):
        print(f"{state.timestamp.batch.value} {state.loss.item():.12g}")

    def eval_end(self, state, logger):
        print(
            *(f"{name} {value.compute().item():.12g}" for name, value in state.eval_metrics["eval"].items())
        )


trainer = Trainer(
    model=model,
    train_dataloader=train,
    eval_dataloader=evaluation,
    max_duration="2ep",
    optimizers=DecoupledSGDW(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
    schedulers=CosineAnnealingScheduler(),
    algorithms=[LabelSmoothing(0.1)],
    callbacks=[Show()],
    device="cpu",
    progress_bar=False,
    seed=0,
)
trainer.fit()
