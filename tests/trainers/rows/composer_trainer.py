"""Composer's Trainer with label smoothing."""

from trainers.row import Row

ROW = Row(
    title="Composer's `Trainer`",
    packages=("mosaicml==0.32.1",),
    needs=(
        "coolname==5.0.0",
        "importlib-metadata==10.2.0",
        "lazy-importer==0.1.0",
        "mosaicml-cli==0.8.3",
        "py-cpuinfo==9.0.0",
        "pytorch-ranger==0.1.1",
        "tabulate==0.10.0",
        "torch-optimizer==0.3.0",
        "torchmetrics==1.7.4",
        "torchvision==0.28.0",
        "zipp==4.1.2",
    ),
    script="composer_trainer.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
