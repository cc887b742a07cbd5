"""Ultralytics' YOLO11, trained from its yaml on images made here."""

from trainers.row import Row

ROW = Row(
    title="Ultralytics' `YOLO.train`, YOLO11",
    packages=("ultralytics==8.4.190",),
    script="ultralytics_yolo.py",
    expected={"ddp": "parts", "zero3": "parts", "tensor=2": "replicated"},
    because="its `forward` also computes the loss, and matches boxes of the whole batch on the host. Tried "
    "on 2026-12-01 in single precision, four steps: differences of 8e-4, not told from rounding yet.",
    double=False,
)
