"""Functions of libraries that open files in native code, past any replaced `open`.

Each returns a plain value, so rank 0 calls it alone. Native objects that stay open and are written in pieces
(a video, an audio stream) are not supported.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NATIVE_WRITERS", "NativeWriter"]

_TABLE = """
SimpleITK.extra         WriteImage 1 fileName
cv2                     imwrite 0 filename | imwritemulti 0 filename
faiss                   write_index 1 fname | write_index_binary 1 fname
lightgbm.basic          Booster.save_model 1 filename
polars                  DataFrame.write_csv 1 file | DataFrame.write_parquet 1 file
polars                  DataFrame.write_ipc 1 file | DataFrame.write_ipc_stream 1 file
polars                  DataFrame.write_json 1 file
polars                  DataFrame.write_ndjson 1 file | DataFrame.write_avro 1 file
polars                  LazyFrame.sink_csv 1 path | LazyFrame.sink_parquet 1 path
polars                  LazyFrame.sink_ipc 1 path | LazyFrame.sink_ndjson 1 path
pyarrow.csv             write_csv 1 output_file
pyarrow.dataset         write_dataset 1 base_dir
pyarrow.feather         write_feather 1 dest
pyarrow.orc             write_table 1 where
pyarrow.parquet         write_table 1 where
sentencepiece           SentencePieceTrainer.Train - model_prefix | SentencePieceTrainer.train - model_prefix
soundfile               write 0 file
tokenizers              Tokenizer.save 1 path
tokenizers.models       Model.save 1 folder
torch.autograd.profiler profile.export_chrome_trace 1 path
torch.export            save 1 f
torch.jit               save 1 f | ScriptFunction.save 1 filename
torch.jit               RecursiveScriptModule.save 1 f | ScriptModule.save 1 f
torch.jit               RecursiveScriptModule._save_for_lite_interpreter 1 filename
torch.jit               ScriptModule._save_for_lite_interpreter 1 filename
xgboost.core            Booster.save_model 1 fname
""".strip().split("\n")


class NativeWriter(NamedTuple):
    """One such function.

    Attributes:
        name: the qualified name within its module.
        position, argument: position and name of the path argument; a method has its object first. The path
            may be a folder's, or a prefix of several files' names. Without a position it is given by name.
    """

    name: str
    position: int | None
    argument: str


def _writers() -> dict[str, tuple[NativeWriter, ...]]:
    found: dict[str, tuple[NativeWriter, ...]] = {}
    for line in _TABLE:
        module, _, entries = line.partition(" ")
        for name, position, argument in (entry.split() for entry in entries.split("|")):
            writer = NativeWriter(name, None if position == "-" else int(position), argument)
            found[module] = (*found.get(module, ()), writer)
    return found


NATIVE_WRITERS = _writers()
"""Functions by the full name of the module."""
