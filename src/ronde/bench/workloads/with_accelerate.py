"""The twin of `plain.py` with Hugging Face Accelerate, as its documentation says.

`split_batches` makes the loader's batch the global one. DDP beneath has the settings of the twin by hand.
"""

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DataLoaderConfiguration
from training import Twin, train


class Accelerate(Twin):
    def __init__(self):
        self.accelerator = Accelerator(
            cpu=True,
            dataloader_config=DataLoaderConfiguration(split_batches=True),
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)],
        )
        self.rank, self.ranks = self.accelerator.process_index, self.accelerator.num_processes

    def loader(self, data, args):
        return self.accelerator.prepare(super().loader(data, args))

    def prepare(self, workload, args):
        model = workload.twins()
        return self.accelerator.prepare(model, workload.optimizer(model.parameters()))

    def backward(self, loss):
        self.accelerator.backward(loss)

    def mean(self, loss):
        return torch.as_tensor(self.accelerator.reduce(loss.detach(), "mean")).item()

    def close(self):
        self.accelerator.end_training()


if __name__ == "__main__":
    train(Accelerate)
