"""Fit a skorch classifier on arrays, with a validation split of its own."""

import numpy
import torch
from skorch import NeuralNetClassifier
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
draw = numpy.random.default_rng(0)
inputs = draw.standard_normal((50, 12))
targets = (inputs[:, 0] > 0).astype(numpy.int64)


class Network(nn.Module):
    def __init__(self, units=16):
        super().__init__()
        self.dense = nn.Linear(12, units)
        self.dropout = nn.Dropout(0.2)
        self.output = nn.Linear(units, 2)

    def forward(self, x):
        return self.output(self.dropout(torch.relu(self.dense(x))))


net = NeuralNetClassifier(
    Network,
    criterion=nn.CrossEntropyLoss,
    max_epochs=3,
    lr=0.1,
    batch_size=8,
    iterator_train__shuffle=True,
    verbose=0,
)
net.fit(inputs, targets)
for row in net.history:
    print(row["epoch"], f"{row['train_loss']:.12g} {row['valid_loss']:.12g} {row['valid_acc']:.12g}")
print(f"{numpy.abs(net.predict_proba(inputs)).sum():.12g} {net.score(inputs, targets):.12g}")
