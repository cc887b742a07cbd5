"""A pipeline of NVIDIA DALI on the CPU."""

from pathlib import Path

from trainers.row import Row


def images(folder: Path) -> None:
    """Write 24 JPEG files in folders of three classes."""
    import numpy
    from PIL import Image

    draw = numpy.random.default_rng(0)
    for number in range(24):
        label = number % 3
        place = folder / "images" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(60 * label, 60 * label + 100, size=(48, 40, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(place / f"{number}.jpg")


ROW = Row(
    title="DALI's pipeline on the CPU, `DALIGenericIterator`",
    packages=("nvidia-dali-cuda130==2.4.0",),
    script="loader_dali.py",
    data=images,
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "replicated"},
    because="`tensor` cuts nothing of this convolutional network.",
)
