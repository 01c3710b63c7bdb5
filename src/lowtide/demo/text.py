"""The text of the demo: the Python standard library's own source files, or the user's own.

In:      the standard library (each file a document), or a file of text
Out:     the path of the text; text/python.jsonl in the demo's folder
Memory:  one source file
"""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import check_text_field
from lowtide.demo.stages import DemoSettings
from lowtide.errors import DataError
from lowtide.files import atomic_file

__all__ = ["find_text", "write_library_sources"]

# Other people's code, or files that do not read like code: tables of characters, help texts.
_SKIPPED_FOLDERS = {
    *("site-packages", "dist-packages", "test", "tests", "__pycache__", "ensurepip"),
    *("encodings", "idlelib", "lib2to3", "pydoc_data", "turtledemo"),
}
_ENOUGH_FILES = 50


def find_text(settings: DemoSettings) -> Path:
    """Return the demo's text; collect the library's sources if that is not done yet."""
    if settings.text is not None:
        if not settings.text.is_file():
            raise DataError(
                "text file not found",
                path=settings.text,
                next_step="check the path for typing errors",
            )
        if settings.text.stat().st_size == 0:
            raise DataError("text file is empty", path=settings.text, next_step="name another one")
        try:
            check_text_field(expand_inputs([settings.text]), "text")
        except DataError as error:
            again = "give the demo rows with a field called text; other fields can be named with "
            raise DataError(
                error.message,
                path=error.path,
                next_step=f"{again}--text-field of lowtide train-tokenizer and prepare",
            ) from None
        return settings.text.absolute()
    path = settings.out_dir / "text" / "python.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_library_sources(path)
    return path


def write_library_sources(path: Path) -> None:
    """Write each source file of the standard library as one row of jsonl."""
    root = Path(sysconfig.get_paths()["stdlib"])
    num_files = 0
    with atomic_file(path) as file:
        for source in _iter_library_files(root):
            try:
                text = source.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue  # a few old modules are written in Latin-1
            if text.strip():
                row = {"text": text, "source": str(source.relative_to(root))}
                file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
                num_files += 1
        if num_files < _ENOUGH_FILES:
            raise DataError(
                f"only {num_files} source files of Python's library found, too few to learn from",
                path=root,
                next_step="lowtide demo --text FILE runs the demo on your own text",
            )


def _iter_library_files(root: Path) -> Iterator[Path]:
    """Return the library's source files in a fixed order."""
    for folder, folder_names, file_names in os.walk(root):
        folder_names[:] = sorted(set(folder_names) - _SKIPPED_FOLDERS)
        for name in sorted(file_names):
            if name.endswith(".py"):
                yield Path(folder) / name
