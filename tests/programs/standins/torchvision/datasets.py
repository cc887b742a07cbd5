"""scikit-learn's digits in place of the usual data sets of images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

from .size import IMAGES

__all__ = ["CIFAR10", "CIFAR100", "KMNIST", "MNIST", "FakeData", "FashionMNIST", "ImageFolder"]

Change = Callable[[Any], Any]


class _Digits(Dataset[Any]):
    """The first images are for training, those behind for tests, of which there are a quarter as many."""

    side = 28
    colours = False
    classes: ClassVar[list[str]] = [str(digit) for digit in range(10)]

    def __init__(
        self,
        root: Any = "",
        train: bool = True,
        transform: Change | None = None,
        target_transform: Change | None = None,
        download: bool = False,
    ) -> None:
        self.root, self.train = root, train
        self.transform, self.target_transform = transform, target_transform
        digits = load_digits()
        part = slice(0, IMAGES) if train else slice(-max(1, IMAGES // 4), None)
        self.data: Any = _enlarged(digits.images[part], self.side)
        self.targets: Any = torch.tensor(digits.target[part])
        if self.colours:
            shades = [self.data, self.data // 2, 255 - self.data]
            self.data = torch.stack(shades, 3).numpy()
            self.targets = self.targets.tolist()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        image: Any = Image.fromarray(np.asarray(self.data[index]))
        target = int(self.targets[index])
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    @property
    def train_data(self) -> Any:
        return self.data

    @property
    def train_labels(self) -> Any:
        return self.targets

    @property
    def test_data(self) -> Any:
        return self.data

    @property
    def test_labels(self) -> Any:
        return self.targets


class MNIST(_Digits):
    pass


class FashionMNIST(_Digits):
    pass


class KMNIST(_Digits):
    pass


class CIFAR10(_Digits):
    side, colours = 32, True


class CIFAR100(CIFAR10):
    pass


class FakeData(CIFAR10):
    def __init__(
        self,
        size: int = 1000,
        image_size: tuple[int, int, int] = (3, 224, 224),
        num_classes: int = 10,
        transform: Change | None = None,
        **options: Any,
    ) -> None:
        super().__init__(transform=transform)
        rows, columns = (np.arange(length) * self.side // length for length in image_size[1:])
        self.data = self.data[:, rows][:, :, columns]


_FOR_TESTS = ("val", "validation", "test")


class ImageFolder(CIFAR10):
    """The images for tests where the folder's name says so, whatever lies in it."""

    def __init__(self, root: Any, transform: Change | None = None, **options: Any) -> None:
        super().__init__(root, transform=transform, train=Path(root).name not in _FOR_TESTS)


def _enlarged(images: Any, side: int) -> torch.Tensor:
    """Eight by eight numbers up to 16 as bytes of four times the size, cut to `side` in the middle."""
    large = np.kron(images * 255 / 16, np.ones((4, 4)))
    margin = (32 - side) // 2
    return torch.from_numpy(large[:, margin : margin + side, margin : margin + side].astype(np.uint8))
