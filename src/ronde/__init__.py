"""ronde: an unmodified single-device PyTorch script on many devices, with the single-device answer."""

__version__ = "0.1.0"
