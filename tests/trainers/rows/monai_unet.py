"""MONAI's UNet with its transforms, trainer and evaluator."""

from trainers.row import Row

ROW = Row(
    title="MONAI's `SupervisedTrainer`, UNet",
    packages=(
        "monai==1.6.1",
        "pytorch-ignite==0.5.5",
    ),
    script="monai_unet.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "replicated"},
    because="`tensor` cuts nothing of this convolutional network.",
)
