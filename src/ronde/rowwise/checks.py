"""Code known to read values only for checks or kernel choice."""

from __future__ import annotations

import sys

__all__ = ["only_checks"]

# Modules between an operation and the code that called it.
_OURS_AND_TORCHS = ("torch", "ronde", "contextlib", "functools")
# Modules, and functions in them, that read a value only to check it; "" for all functions.
_CHECKS = {
    ("torch.distributions.distribution", ""),
    ("torch.distributions.constraints", ""),
    ("torch.nn.modules.transformer", "_detect_is_causal_mask"),
    ("torch.nn.modules.batchnorm", "forward"),
    ("transformers.masking_utils", ""),
    ("transformers.modeling_utils", "warn_if_padding_and_no_attention_mask"),
    ("transformers.modeling_attn_mask_utils", ""),
}


def only_checks() -> bool:
    """Return whether a check, or a choice of kernels, called the running operation."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if (module, "") in _CHECKS or (module, frame.f_code.co_name) in _CHECKS:
            return True
        if not module.startswith(_OURS_AND_TORCHS):
            return False
        frame = frame.f_back
    return False
