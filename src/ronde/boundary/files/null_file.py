"""What other ranks write into: a raw file that keeps position and size as a real one would, and no bytes."""

from __future__ import annotations

import io
import os
from typing import Any

__all__ = ["NullFile", "NullRecords", "Sink"]


class Sink(io.RawIOBase):
    """Takes any bytes and forgets them: for serializers that only want something to write to."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return memoryview(data).nbytes


class NullRecords:
    """In the place of tensorboard's `RecordWriter`: takes event records and forgets them."""

    def __init__(self, writer: object) -> None:
        self.closed = False

    def write(self, data: bytes) -> None:
        if self.closed:
            raise OSError("Writer is closed")

    def flush(self) -> None:
        if self.closed:
            raise OSError("Writer is closed")

    def close(self) -> None:
        self.closed = True


class NullFile(io.RawIOBase):
    """Behaves as the `io.FileIO` of a regular file opened by `mode`, without bytes and without reading.

    The standard library's buffers and text layers go on top, so everything above the bytes
    (encodings, newlines, buffering, `closed`, errors) is the real thing.

    Args:
        name: what `.name` answers, as for `io.FileIO`.
        mode: `w`, `x` or `a`.
        size: bytes that the file has at the start (of the main rank's file, when appending).
    """

    def __init__(self, name: str | bytes, mode: str, size: int = 0) -> None:
        super().__init__()
        self.name = name
        self._mode = mode
        self._appending = "a" in mode
        self._size = size
        self._position = size if self._appending else 0
        self._descriptor: int | None = None

    @property
    def mode(self) -> str:
        return f"{self._mode[0]}b"

    @property
    def closefd(self) -> bool:
        return True

    @property
    def size(self) -> int:
        """Size in bytes that the real file would have."""
        if self._descriptor is not None:
            # Code below Python (numpy's tofile) writes to the descriptor and then seeks this file.
            self._size = max(self._size, os.fstat(self._descriptor).st_size)
        return self._size

    def readable(self) -> bool:
        self._check_open()
        return False

    def writable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return True

    def isatty(self) -> bool:
        self._check_open()
        return False

    def write(self, data: Any, /) -> int:
        self._check_open()
        count = memoryview(data).nbytes
        start = self.size if self._appending else self._position
        if count:
            self._position = start + count
            self._size = max(self._size, self._position)
        return count

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._check_open()
        if whence not in (0, 1, 2):
            raise OSError(22, "Invalid argument")
        position = offset + (0, self._position, self.size)[whence]
        if position < 0:
            raise OSError(22, "Invalid argument")
        self._position = position
        return position

    def tell(self) -> int:
        self._check_open()
        return self._position

    def truncate(self, size: int | None = None, /) -> int:
        self._check_open()
        self._size = self._position if size is None else size
        if self._size < 0:
            raise OSError(22, "Invalid argument")
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, self._size)
        return self._size

    def fileno(self) -> int:
        """A descriptor of anonymous memory, so that `os.fsync`, locks and child processes have one to use."""
        self._check_open()
        if self._descriptor is None:
            self._descriptor = os.memfd_create("ronde-null-file")
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, self._position, os.SEEK_SET)
        return self._descriptor

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
