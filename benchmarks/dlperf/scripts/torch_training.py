"""An engine of torch on one device, parts of which libraries override."""

from __future__ import annotations

from typing import Any

import torch
from loop import Engine
from torch.utils.data import DataLoader, TensorDataset
from torch_models import loss_of, make


class Torch(Engine):
    def __init__(self, case, arrays):
        super().__init__(case, arrays)
        self.version = f"torch {torch.__version__}"
        self.join()
        model = make(case)
        model.load_state_dict({name: torch.from_numpy(value) for name, value in self.weights.items()})
        del self.weights
        self.model, self.optimizer = self.prepare(model)
        data = TensorDataset(torch.from_numpy(self.inputs), torch.from_numpy(self.targets))
        self.loader = self.load(data)

    def join(self):
        """Enter the group of ranks."""

    def optimizer_of(self, model):
        """Return the case's optimizer."""
        rate = self.case["learning_rate"]
        if self.case["optimizer"] == "adam":
            return torch.optim.Adam(model.parameters(), lr=rate)
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def prepare(self, model):
        """Return the model and its optimizer."""
        return model, self.optimizer_of(model)

    def load(self, data) -> Any:
        """Return the loader."""
        return DataLoader(data, self.case["batch"])

    def batches(self) -> Any:
        return self.loader

    def backward(self, loss):
        """Compute the gradients."""
        loss.backward()

    def step(self, inputs, targets):
        loss = loss_of(self.model(inputs), targets)
        self.optimizer.zero_grad()
        self.backward(loss)
        self.optimizer.step()
        return loss.item()
