"""Functions of libraries that open a file in native code, which no replaced `open` sees.

Each returns a plain value, so the main rank calls it alone. What native code writes line by line, into an
object that stays open (a video, an audio stream), is not among them.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NATIVE_WRITERS", "NativeWriter"]


class NativeWriter(NamedTuple):
    """One of them.

    Attributes:
        name: within its module.
        position, argument: of the path among what it is given; a method is given its object first. The path
            may be that of a folder, or what the names of several files begin with. Without a position it is
            given by name.
    """

    name: str
    position: int | None
    argument: str


_OF_FRAMES = "csv parquet ipc ipc_stream json ndjson avro".split()
_OF_LAZY_FRAMES = "csv parquet ipc ndjson".split()
_SCRIPT_MODULES = ("RecursiveScriptModule", "ScriptModule")

NATIVE_WRITERS: dict[str, tuple[NativeWriter, ...]] = {
    "SimpleITK.extra": (NativeWriter("WriteImage", 1, "fileName"),),
    "cv2": (NativeWriter("imwrite", 0, "filename"), NativeWriter("imwritemulti", 0, "filename")),
    "faiss": (NativeWriter("write_index", 1, "fname"), NativeWriter("write_index_binary", 1, "fname")),
    "lightgbm.basic": (NativeWriter("Booster.save_model", 1, "filename"),),
    "polars": (
        *(NativeWriter(f"DataFrame.write_{form}", 1, "file") for form in _OF_FRAMES),
        *(NativeWriter(f"LazyFrame.sink_{form}", 1, "path") for form in _OF_LAZY_FRAMES),
    ),
    "pyarrow.csv": (NativeWriter("write_csv", 1, "output_file"),),
    "pyarrow.dataset": (NativeWriter("write_dataset", 1, "base_dir"),),
    "pyarrow.feather": (NativeWriter("write_feather", 1, "dest"),),
    "pyarrow.orc": (NativeWriter("write_table", 1, "where"),),
    "pyarrow.parquet": (NativeWriter("write_table", 1, "where"),),
    "sentencepiece": (
        NativeWriter("SentencePieceTrainer.Train", None, "model_prefix"),
        NativeWriter("SentencePieceTrainer.train", None, "model_prefix"),
    ),
    "soundfile": (NativeWriter("write", 0, "file"),),
    "tokenizers": (NativeWriter("Tokenizer.save", 1, "path"),),
    "tokenizers.models": (NativeWriter("Model.save", 1, "folder"),),
    "torch.autograd.profiler": (NativeWriter("profile.export_chrome_trace", 1, "path"),),
    "torch.export": (NativeWriter("save", 1, "f"),),
    "torch.jit": (
        NativeWriter("save", 1, "f"),
        NativeWriter("ScriptFunction.save", 1, "filename"),
        # The one for what was scripted, the other for what was traced.
        *(NativeWriter(f"{kind}.save", 1, "f") for kind in _SCRIPT_MODULES),
        *(NativeWriter(f"{kind}._save_for_lite_interpreter", 1, "filename") for kind in _SCRIPT_MODULES),
    ),
    "xgboost.core": (NativeWriter("Booster.save_model", 1, "fname"),),
}
"""By the full name of the module."""
