"""Trains a small network on JPEG files, and prints samples per second.

    train_images.py LOADER FOLDER

LOADER is a name in `LOADERS`. FOLDER has `images/LABEL/NUMBER.jpg` and the same files in `train-*.tar`.
"""

import io
import json
import sys
import time
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE, BATCH, EPOCHS = 96, 32, 3


def pixels_of(image):
    """Return an image as a tensor [3, SIZE, SIZE] from 0 to 1."""
    image = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1).float().div_(255)


class Files(Dataset):
    """The images of a folder."""

    def __init__(self, folder):
        self.files = sorted((folder / "images").glob("*/*.jpg"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        return pixels_of(Image.open(file)), int(file.parent.name)


def dataloader(folder):
    return DataLoader(Files(folder), BATCH, shuffle=True)


def stateful(folder):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Files(folder), BATCH, shuffle=True)


def webdataset(folder):
    from webdataset import WebDataset, WebLoader

    data = WebDataset(str(folder / "train-{0..3}.tar"), shardshuffle=4, seed=0).shuffle(256, seed=0)
    data = data.to_tuple("jpg", "cls").map_tuple(lambda jpg: pixels_of(Image.open(io.BytesIO(jpg))), int)
    return WebLoader(data.batched(BATCH), batch_size=None)


def streaming(folder):
    from datasets import load_dataset

    data = load_dataset("imagefolder", data_dir=str(folder / "images"), split="train", streaming=True)
    data = data.shuffle(seed=0, buffer_size=256)
    data = data.map(
        lambda row: {"pixels": pixels_of(row["image"]).numpy(), "target": row["label"]},
        remove_columns=["image", "label"],
    )
    return DataLoader(
        data.with_format("torch"),
        BATCH,
        collate_fn=lambda rows: (
            torch.stack([row["pixels"] for row in rows]),
            torch.stack([row["target"] for row in rows]),
        ),
    )


class Dali:
    """A pipeline that decodes on the CPU."""

    def __init__(self, folder):
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

        @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=0)
        def pipeline():
            root = str(folder / "images")
            files, labels = fn.readers.file(file_root=root, random_shuffle=True, seed=0, name="reader")
            images = fn.resize(fn.decoders.image(files, device="cpu"), size=[SIZE, SIZE])
            images = fn.crop_mirror_normalize(images, dtype=types.FLOAT, std=[255.0], output_layout="CHW")
            return images, labels

        self.batches = DALIGenericIterator(
            [pipeline()], ["images", "labels"], reader_name="reader", auto_reset=True,
            last_batch_policy=LastBatchPolicy.PARTIAL,
        )  # fmt: skip

    def __iter__(self):
        for (batch,) in self.batches:
            yield batch["images"], batch["labels"].squeeze(-1).long()


LOADERS = {
    "DataLoader": dataloader,
    "StatefulDataLoader": stateful,
    "webdataset": webdataset,
    "datasets": streaming,
    "DALI": Dali,
}


def main():
    """Train, and time all epochs but the first."""
    loader = LOADERS[sys.argv[1]](Path(sys.argv[2]))
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples, begun, loss = 0, 0.0, torch.zeros(())
    for epoch in range(EPOCHS):
        if epoch == 1:
            begun = time.perf_counter()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(labels) if epoch else 0
    loss.item()
    print(json.dumps({"samples_per_second": samples / (time.perf_counter() - begun)}))


main()
