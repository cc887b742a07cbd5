"""Lightning's Trainer, a LightningModule on a DataModule."""

from trainers.row import Row

ROW = Row(
    title="Lightning's `Trainer`, a `LightningModule` on a `DataModule`",
    packages=("lightning==2.6.6",),
    script="lightning_trainer.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
