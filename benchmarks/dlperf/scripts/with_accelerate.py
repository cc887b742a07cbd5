"""The training with Hugging Face Accelerate.

DDP beneath has the settings of the script by hand.
"""

import accelerate
from accelerate import Accelerator, DistributedDataParallelKwargs
from loop import run
from torch.utils.data import DataLoader, DistributedSampler
from torch_training import Torch


class Accelerate(Torch):
    def join(self):
        self.version = accelerate.__version__
        settings = DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)
        self.accelerator = Accelerator(cpu=True, kwargs_handlers=[settings])

    def prepare(self, model):
        return self.accelerator.prepare(model, self.optimizer_of(model))

    def load(self, data):
        rows = DistributedSampler(data, self.ranks, self.rank, shuffle=False)
        # The rows are those of this rank already.
        return DataLoader(data, self.case["batch"] // self.ranks, sampler=rows)

    def backward(self, loss):
        self.accelerator.backward(loss)

    def close(self):
        self.accelerator.end_training()


if __name__ == "__main__":
    run(Accelerate)
