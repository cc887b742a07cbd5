"""A workload with `ronde.Step`: the schedule of a pipeline owns forward and backward."""

from training import Adapter, train

import ronde


class Step(Adapter):
    def prepare(self, workload, args):
        model, optimizer = super().prepare(workload, args)
        return ronde.Step(model, optimizer, workload.loss), optimizer

    def step(self, workload, model, optimizer, inputs, targets):
        return model(inputs, target=targets)


if __name__ == "__main__":
    train(Step)
