"""Event files of TensorBoard, written with its own package, without torch.

In:      numbers and texts by name and step
Out:     one file of events in a folder, which TensorBoard shows
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, BinaryIO

from lowtide.packages import import_package

__all__ = ["EventFile"]


class EventFile:
    """Appends to a new file of events; a resumed run adds another file.

    Records are written here and not by the package's own writer: its thread ends with a traceback
    on a full disk, and closing it may then block for ever. Metrics never end a job: if they cannot
    be written, `note` is called once, and the run continues.
    """

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        import_package("tensorboard", "--tensorboard")
        self._proto = {
            name: _module(f"compat.proto.{name}_pb2")
            for name in ("event", "summary", "tensor", "tensor_shape")
        }
        self._text_data = _module("plugins.text.plugin_data_pb2")
        self._writer = _module("summary.writer.record_writer").RecordWriter
        self._note = note
        place = f"{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / f"events.out.tfevents.{place}.{secrets.token_hex(4)}"
        self._file: BinaryIO | None = None
        with self._noting():
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("xb")
        self._write(file_version="brain.Event:2")

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Add a point of a curve."""
        self._add(step, tag=name, simple_value=float(value))

    def add_text(self, name: str, text: str, step: int) -> None:
        """Add a text, on the page of texts."""
        kind = self._proto["summary"].SummaryMetadata
        content = self._text_data.TextPluginData(version=0).SerializeToString()
        plugin = kind.PluginData(plugin_name="text", content=content)
        shape = self._proto["tensor_shape"].TensorShapeProto
        tensor = self._proto["tensor"].TensorProto(
            dtype="DT_STRING",
            string_val=[text.encode()],
            tensor_shape=shape(dim=[shape.Dim(size=1)]),
        )
        self._add(
            step,
            tag=f"{name}/text_summary",
            metadata=kind(plugin_data=plugin),
            tensor=tensor,
        )

    def _add(self, step: int, **value: Any) -> None:
        summary = self._proto["summary"].Summary
        self._write(step=step, summary=summary(value=[summary.Value(**value)]))

    def _write(self, **event: Any) -> None:
        if self._file is None:
            return
        record = self._proto["event"].Event(wall_time=time.time(), **event)
        with self._noting():
            self._writer(self._file).write(record.SerializeToString())
            self._file.flush()

    @contextlib.contextmanager
    def _noting(self) -> Generator[None]:
        """On an error, note that events cannot be written, and write no more."""
        try:
            yield
        except OSError as error:
            self._note(f"no more events for TensorBoard: {self._path}: {error.strerror}")
            self.close()

    def close(self) -> None:
        """Close the file; every event is written already."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # the rest of an event on a full disk
                file.close()


def _module(name: str) -> Any:
    return importlib.import_module(f"tensorboard.{name}")
