"""timm's train.py, as found in its repository, on pictures made here."""

from pathlib import Path

from programs.data import pictures
from programs.listing import Program
from trainers.row import Row


def data(folder: Path) -> None:
    for split in ("train", "validation"):
        for number, name in ((8, "one"), (12, "two")):
            (folder / "images" / split).mkdir(parents=True, exist_ok=True)
            pictures(folder / "images" / split / name, number=number, side=32)


ROW = Row(
    title="timm's `train.py`",
    packages=("timm==1.0.28", "torchvision==0.28.0"),
    source=Program(
        repository="huggingface/pytorch-image-models",
        path="train.py",
        commit="8ef73809f622e0031bd7f4940265734aef8b9978",
        sha256="1fb02d26fe16536bc7de2c987980644353117c2b2b8046532261464093cd1ac6",
        field="images",
        arguments="--data-dir images --model test_resnet --num-classes 2 --img-size 32 --batch-size 4 "
        "--epochs 1 --workers 1 --device cpu --no-prefetcher --log-interval 1 --output out --experiment one",
        steps=1000,
        standins=(),
        beside=(),
    ),
    data=data,
    expected={"ddp": "one piece but the loss", "zero3": "one piece but the loss", "tensor=2": "replicated"},
    because="`tensor` cuts nothing of this convolutional network.",
    start="`ronde run train.py` in place of its `distributed_train.sh`.",
)
