"""The training with Horovod; `ronde horovodrun` starts it."""

import horovod.torch as hvd
from loop import run
from torch.utils.data import DataLoader, DistributedSampler
from torch_training import Torch


class Horovod(Torch):
    def join(self):
        hvd.init()
        self.rank, self.ranks = hvd.rank(), hvd.size()

    def prepare(self, model):
        optimizer = self.optimizer_of(model)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def load(self, data):
        rows = DistributedSampler(data, self.ranks, self.rank, shuffle=False)
        return DataLoader(data, self.case["batch"] // self.ranks, sampler=rows)


if __name__ == "__main__":
    run(Horovod)
