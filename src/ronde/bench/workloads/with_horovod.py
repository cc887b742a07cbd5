"""The twin of `plain.py` for Horovod, as its documentation says; `ronde horovodrun` starts it."""

import horovod.torch as hvd
from torch.utils.data import DataLoader, DistributedSampler
from training import Twin, train


class Horovod(Twin):
    def __init__(self):
        hvd.init()
        self.rank, self.ranks = hvd.rank(), hvd.size()

    def loader(self, data, args):
        sampler = DistributedSampler(data, num_replicas=self.ranks, rank=self.rank)
        return DataLoader(data, args.batch_size // self.ranks, sampler=sampler)

    def prepare(self, workload, args):
        model = workload.twins()
        optimizer = workload.optimizer(model.parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def mean(self, loss):
        return hvd.allreduce(loss.detach()).item()


if __name__ == "__main__":
    train(Horovod)
