"""The twin of `plain.py` by hand with sharded optimizer state, as torch's documentation says."""

from torch.distributed.optim import ZeroRedundancyOptimizer
from training import train
from with_ddp import Ddp


class Zero(Ddp):
    def optimizer(self, workload, parameters):
        kind, options = workload.optimizer.func, workload.optimizer.keywords
        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **options)


if __name__ == "__main__":
    train(Zero)
