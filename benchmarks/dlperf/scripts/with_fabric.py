"""The training with Lightning Fabric.

DDP beneath has the settings of the script by hand.
"""

import lightning_fabric
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from loop import run
from torch.utils.data import DataLoader, DistributedSampler
from torch_training import Torch


class FabricEngine(Torch):
    def join(self):
        self.version = lightning_fabric.__version__
        settings = DDPStrategy(gradient_as_bucket_view=True, static_graph=True)
        self.fabric = Fabric(accelerator="cpu", devices=self.ranks, strategy=settings)
        self.fabric.launch()

    def prepare(self, model):
        return self.fabric.setup(model, self.optimizer_of(model))

    def load(self, data):
        rows = DistributedSampler(data, self.ranks, self.rank, shuffle=False)
        loader = DataLoader(data, self.case["batch"] // self.ranks, sampler=rows)
        return self.fabric.setup_dataloaders(loader, use_distributed_sampler=False)

    def backward(self, loss):
        self.fabric.backward(loss)


if __name__ == "__main__":
    run(FabricEngine)
