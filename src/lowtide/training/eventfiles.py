"""Event files of TensorBoard, with its own package alone: torch is not needed for them.

In:      numbers and texts by name and step
Out:     one file of events in a folder, which TensorBoard shows
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from lowtide.packages import import_package

__all__ = ["EventFile"]


class EventFile:
    """Appends to a new file of events; a run that goes on adds another file."""

    def __init__(self, folder: Path) -> None:
        import_package("tensorboard", "--tensorboard")
        self._proto = {
            name: _module(f"compat.proto.{name}_pb2")
            for name in ("event", "summary", "tensor", "tensor_shape")
        }
        self._text_data = _module("plugins.text.plugin_data_pb2")
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _module("summary.writer.event_file_writer").EventFileWriter(str(folder))

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
        event = self._proto["event"].Event(
            wall_time=time.time(), step=step, summary=summary(value=[summary.Value(**value)])
        )
        self._file.add_event(event)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


def _module(name: str) -> Any:
    return importlib.import_module(f"tensorboard.{name}")
