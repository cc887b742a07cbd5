"""The usual transforms of images; what is random is drawn from torch's generator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Grayscale",
    "Lambda",
    "Normalize",
    "Pad",
    "RandomAffine",
    "RandomApply",
    "RandomCrop",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "Resize",
    "ToPILImage",
    "ToTensor",
    "transforms",
]

# `from torchvision.transforms import transforms` is common.
transforms = sys.modules[__name__]

Size = int | Sequence[int]


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image: Any) -> torch.Tensor:
        array = np.array(image)
        array = array[:, :, None] if array.ndim == 2 else array
        values = torch.from_numpy(array).permute(2, 0, 1).contiguous()
        return values.to(torch.get_default_dtype()) / 255 if values.dtype == torch.uint8 else values


class ToPILImage:
    def __call__(self, image: torch.Tensor) -> Any:
        array = (image * 255).byte().permute(1, 2, 0).numpy()
        return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


class Normalize:
    def __init__(self, mean: Any, std: Any, inplace: bool = False) -> None:
        self.mean, self.std = np.atleast_1d(mean), np.atleast_1d(std)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        # A picture in grey may be given three of each.
        mean = torch.as_tensor(self.mean[: len(image)], dtype=image.dtype).view(-1, 1, 1)
        std = torch.as_tensor(self.std[: len(image)], dtype=image.dtype).view(-1, 1, 1)
        return (image - mean) / std


class Resize:
    def __init__(self, size: Size, *args: Any, **options: Any) -> None:
        self.size = _pair(size)

    def __call__(self, image: Any) -> Any:
        if isinstance(image, torch.Tensor):
            return F.interpolate(image[None], self.size, mode="bilinear", align_corners=False)[0]
        return image.resize(self.size[::-1], Image.Resampling.BILINEAR)


class CenterCrop:
    def __init__(self, size: Size) -> None:
        self.size = _pair(size)

    def __call__(self, image: Any) -> Any:
        left, top = (image.width - self.size[1]) // 2, (image.height - self.size[0]) // 2
        return image.crop((left, top, left + self.size[1], top + self.size[0]))


class Pad:
    def __init__(self, padding: int, fill: int = 0) -> None:
        self.padding, self.fill = padding, fill

    def __call__(self, image: Any) -> Any:
        return ImageOps.expand(image, self.padding, self.fill)


class RandomCrop:
    def __init__(self, size: Size, padding: int | None = None, **options: Any) -> None:
        self.size, self.padding = _pair(size), padding or 0

    def __call__(self, image: Any) -> Any:
        image = ImageOps.expand(image, self.padding)
        top = int(torch.randint(0, image.height - self.size[0] + 1, (1,)))
        left = int(torch.randint(0, image.width - self.size[1] + 1, (1,)))
        return image.crop((left, top, left + self.size[1], top + self.size[0]))


class RandomResizedCrop:
    """A part of an image, from three tenths of its side to all of it, in a given size."""

    def __init__(self, size: Size, **options: Any) -> None:
        self.size = _pair(size)

    def __call__(self, image: Any) -> Any:
        share = 0.3 + 0.7 * float(torch.rand(1))
        part = RandomCrop((max(1, int(image.height * share)), max(1, int(image.width * share))))(image)
        return Resize(self.size)(part)


class RandomHorizontalFlip:
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        return ImageOps.mirror(image) if float(torch.rand(1)) < self.p else image


class RandomRotation:
    def __init__(self, degrees: Any, **options: Any) -> None:
        self.degrees = (-degrees, degrees) if isinstance(degrees, (int, float)) else degrees

    def __call__(self, image: Any) -> Any:
        low, high = self.degrees
        return image.rotate(low + (high - low) * float(torch.rand(1)))


class RandomAffine(RandomRotation):
    pass


class Grayscale:
    def __init__(self, num_output_channels: int = 1) -> None:
        self.channels = num_output_channels

    def __call__(self, image: Any) -> Any:
        grey = image.convert("L")
        return grey if self.channels == 1 else Image.merge("RGB", [grey] * 3)


class RandomGrayscale(Grayscale):
    def __init__(self, p: float = 0.1) -> None:
        super().__init__(3)
        self.p = p

    def __call__(self, image: Any) -> Any:
        return super().__call__(image) if float(torch.rand(1)) < self.p else image


class RandomApply:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]], p: float = 0.5) -> None:
        self.all, self.p = Compose(transforms), p

    def __call__(self, image: Any) -> Any:
        return self.all(image) if float(torch.rand(1)) < self.p else image


class ColorJitter:
    """Brightness, contrast and saturation changed by a factor of up to so much; hue is left."""

    def __init__(self, *strengths: float, **options: Any) -> None:
        self.strengths = strengths

    def __call__(self, image: Any) -> Any:
        ways = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for way, strength in zip(ways, self.strengths, strict=False):
            image = way(image).enhance(1 + strength * (2 * float(torch.rand(1)) - 1))
        return image


class Lambda:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, image: Any) -> Any:
        return self.function(image)
