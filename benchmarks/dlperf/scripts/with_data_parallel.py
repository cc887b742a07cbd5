"""The training with `nn.DataParallel`, which has one device on a CPU."""

from loop import run
from torch.nn import DataParallel
from torch_training import Torch


class Parallel(Torch):
    def prepare(self, model):
        return DataParallel(model), self.optimizer_of(model)


if __name__ == "__main__":
    run(Parallel)
