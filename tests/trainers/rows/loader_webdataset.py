"""Shards of tar files, read by webdataset."""

from pathlib import Path

from trainers.row import Row


def shards(folder: Path) -> None:
    """Write four tar files of twelve samples."""
    import io
    import tarfile

    import numpy

    draw = numpy.random.default_rng(0)
    for shard in range(4):
        with tarfile.open(folder / f"train-{shard}.tar", "w") as archive:
            for number in range(12):
                row = draw.normal(size=10)
                buffer = io.BytesIO()
                numpy.save(buffer, row)
                label = str(int(row[:3].argmax())).encode()
                for ending, content in (("npy", buffer.getvalue()), ("cls", label)):
                    member = tarfile.TarInfo(f"{shard}-{number}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


ROW = Row(
    title="`webdataset`, shards of tar files",
    packages=("webdataset==1.0.2",),
    script="loader_webdataset.py",
    data=shards,
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
