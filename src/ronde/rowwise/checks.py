"""Code that looks at values only to check them or to choose a kernel: what it does to rows is the same."""

from __future__ import annotations

import sys

__all__ = ["only_checks"]

# Between an operation and the code that asks for it.
_OURS_AND_TORCHS = ("torch", "ronde", "contextlib", "functools")
# What reads a value only to check it: modules, and functions in them, of torch and of libraries.
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
    """Whether what is under way asks for a value for no other reason."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if (module, "") in _CHECKS or (module, frame.f_code.co_name) in _CHECKS:
            return True
        if not module.startswith(_OURS_AND_TORCHS):
            return False
        frame = frame.f_back
    return False
