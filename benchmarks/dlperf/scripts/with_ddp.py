"""The training with DistributedDataParallel over Gloo."""

import torch.distributed as dist
from loop import run
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch_training import Torch


class Ddp(Torch):
    def join(self):
        dist.init_process_group("gloo")

    def prepare(self, model):
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        return model, self.optimizer_of(model)

    def load(self, data):
        rows = DistributedSampler(data, self.ranks, self.rank, shuffle=False)
        return DataLoader(data, self.case["batch"] // self.ranks, sampler=rows)

    def close(self):
        dist.destroy_process_group()


if __name__ == "__main__":
    run(Ddp)
