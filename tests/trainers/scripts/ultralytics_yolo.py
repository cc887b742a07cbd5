"""Train YOLO11 from its yaml on images made here, as Ultralytics' quickstart does."""

import os
from pathlib import Path

import numpy
from PIL import Image

os.environ.setdefault("YOLO_OFFLINE", "true")
from ultralytics import YOLO

root = Path("shapes").absolute()
draw = numpy.random.default_rng(0)
for part, images in (("train", 16), ("val", 4)):
    (root / "images" / part).mkdir(parents=True, exist_ok=True)
    (root / "labels" / part).mkdir(parents=True, exist_ok=True)
    for number in range(images):
        pixels = draw.integers(0, 60, (64, 64, 3), dtype=numpy.uint8)
        kind = number % 2
        width, height = draw.integers(16, 32, 2)
        left, top = draw.integers(0, 64 - width), draw.integers(0, 64 - height)
        pixels[top : top + height, left : left + width, kind] = 250
        Image.fromarray(pixels).save(root / "images" / part / f"{number}.png")
        box = ((left + width / 2) / 64, (top + height / 2) / 64, width / 64, height / 64)
        (root / "labels" / part / f"{number}.txt").write_text(" ".join(map(str, (kind, *box))) + "\n")
(root / "data.yaml").write_text(
    f"path: {root}\ntrain: images/train\nval: images/val\nnames:\n  0: red\n  1: green\n"
)

model = YOLO("yolo11n.yaml")
results = model.train(
    data=str(root / "data.yaml"),
    epochs=2,
    imgsz=32,
    batch=8,
    nbs=8,
    device="cpu",
    workers=0,
    plots=False,
    amp=False,
    deterministic=True,
    seed=0,
    project=str(Path("runs").absolute()),
    name="shapes",
    exist_ok=True,
)
print(Path("runs/shapes/results.csv").read_text())
