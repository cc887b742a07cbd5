"""Functions of libraries that open a file in native code, which no replaced `open` sees.

None of them is given a tensor of the script, and each returns a plain value: the main rank calls it alone.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NATIVE_WRITERS", "NativeWriter"]


class NativeWriter(NamedTuple):
    """One of them.

    Attributes:
        name: within its module.
        position, argument: of the path among what it is given; a method is given its object first.
    """

    name: str
    position: int
    argument: str


_OF_FRAMES = "csv parquet ipc ipc_stream json ndjson avro".split()
_OF_LAZY_FRAMES = "csv parquet ipc ndjson".split()

NATIVE_WRITERS: dict[str, tuple[NativeWriter, ...]] = {
    "cv2": (NativeWriter("imwrite", 0, "filename"),),
    "polars": (
        *(NativeWriter(f"DataFrame.write_{form}", 1, "file") for form in _OF_FRAMES),
        *(NativeWriter(f"LazyFrame.sink_{form}", 1, "path") for form in _OF_LAZY_FRAMES),
    ),
    "pyarrow.csv": (NativeWriter("write_csv", 1, "output_file"),),
    "pyarrow.feather": (NativeWriter("write_feather", 1, "dest"),),
    "pyarrow.parquet": (NativeWriter("write_table", 1, "where"),),
    "torch.autograd.profiler": (NativeWriter("profile.export_chrome_trace", 1, "path"),),
    "torch.export": (NativeWriter("save", 1, "f"),),
    "torch.jit": (NativeWriter("save", 1, "f"),),
}
"""By the full name of the module."""
