"""Trains from a DALI pipeline that decodes and augments JPEG files on the CPU."""

import nvidia.dali.fn as fn
import nvidia.dali.types as types
import torch
from nvidia.dali import pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


@pipeline_def(batch_size=8, num_threads=1, device_id=None, seed=7)
def pipeline():
    files, labels = fn.readers.file(file_root="images", random_shuffle=True, seed=7, name="reader")
    images = fn.decoders.image(files, device="cpu")
    images = fn.random_resized_crop(images, size=[24, 24], seed=7)
    images = fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", std=[64.0])
    return images, labels


loader = DALIGenericIterator(
    [pipeline()],
    ["images", "labels"],
    reader_name="reader",
    last_batch_policy=LastBatchPolicy.PARTIAL,
    auto_reset=True,
)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(2):
    for (batch,) in loader:
        labels = batch["labels"].squeeze(-1).long()
        loss = nn.functional.cross_entropy(model(batch["images"].double()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.12g}")
