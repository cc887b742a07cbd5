"""Train a LightningModule on a DataModule in double precision, with a checkpoint of the best epoch."""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(L.LightningDataModule):
    def setup(self, stage):
        inputs = torch.randn(48, 1, 8, 8)
        targets = inputs.mean((1, 2, 3)).gt(0).long()
        self.train_set, self.val_set = random_split(TensorDataset(inputs, targets), [32, 16])

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=8)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 36, 32),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(32, 2),
        )

    def forward(self, inputs):
        return self.model(inputs)

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self(inputs), targets)
        self.log("train_loss", loss)
        print(f"{loss.item():.12g}")
        return loss

    def validation_step(self, batch, index):
        inputs, targets = batch
        outputs = self(inputs)
        self.log("val_loss", nn.functional.cross_entropy(outputs, targets))
        self.log("val_accuracy", (outputs.argmax(1) == targets).double().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


L.seed_everything(0)
keep = ModelCheckpoint("checkpoints", monitor="val_loss", filename="best")
trainer = L.Trainer(
    max_epochs=2,
    accelerator="cpu",
    precision="64-true",
    callbacks=[keep],
    gradient_clip_val=1.0,
    logger=False,
    enable_progress_bar=False,
)
model = Classifier()
trainer.fit(model, datamodule=Digits())
print(trainer.world_size, trainer.global_rank, f"{keep.best_model_score.item():.12g}")
for name, value in trainer.callback_metrics.items():
    print(name, f"{value.item():.12g}")
best = Classifier.load_from_checkpoint(keep.best_model_path, weights_only=False)
print(f"{sum(value.double().abs().sum().item() for value in best.state_dict().values()):.12g}")
