"""Fits a Brain of SpeechBrain, as its README does, with its checkpointer."""

import speechbrain as sb
import torch
from speechbrain.utils.checkpoints import Checkpointer

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.LeakyReLU(), torch.nn.Linear(16, 10))
inputs = torch.randn(40, 10)
targets = inputs.flip(1)
train = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs[:32], targets[:32]), batch_size=8)
valid = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs[32:], targets[32:]), batch_size=8)


class SimpleBrain(sb.Brain):
    def compute_forward(self, batch, stage):
        return self.modules.model(batch[0])

    def compute_objectives(self, predictions, batch, stage):
        return torch.nn.functional.l1_loss(predictions, batch[1])

    def on_stage_end(self, stage, stage_loss, epoch=None):
        print(f"{stage} {epoch} {stage_loss:.12g}")
        if stage == sb.Stage.VALID:
            self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])


brain = SimpleBrain(
    {"model": model},
    opt_class=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    run_opts={"device": "cpu"},
    checkpointer=Checkpointer("saved"),
)
brain.fit(range(3), train_set=train, valid_set=valid, progressbar=False)
