"""The twin of `plain.py` with Lightning Fabric, as its documentation says.

A loader's batch is a process's own there. DDP beneath has the settings of the twin by hand.
"""

import os

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch.utils.data import DataLoader
from training import Twin, train


class FabricAdapter(Twin):
    def __init__(self):
        self.fabric = Fabric(
            accelerator="cpu",
            devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            strategy=DDPStrategy(gradient_as_bucket_view=True, static_graph=True),
        )
        self.fabric.launch()
        self.rank, self.ranks = self.fabric.global_rank, self.fabric.world_size

    def loader(self, data, args):
        return self.fabric.setup_dataloaders(DataLoader(data, args.batch_size // self.ranks, shuffle=True))

    def prepare(self, workload, args):
        model = workload.twins()
        return self.fabric.setup(model, workload.optimizer(model.parameters()))

    def backward(self, loss):
        self.fabric.backward(loss)

    def mean(self, loss):
        return torch.as_tensor(self.fabric.all_reduce(loss.detach().clone())).item()


if __name__ == "__main__":
    train(FabricAdapter)
