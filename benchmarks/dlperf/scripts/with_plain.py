"""The training on one device, which `ronde run` runs on its ranks."""

from loop import run
from torch_training import Torch

if __name__ == "__main__":
    run(Torch)
