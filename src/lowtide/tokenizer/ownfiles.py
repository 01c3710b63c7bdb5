"""Check that the files of a learned tokenizer are unchanged since they were written.

In:      a folder that train-tokenizer finished, and its record
Out:     DataError for a file that is missing, damaged or replaced
Disk:    temporarily one more copy of the vocabulary files
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.filenames import TOKENIZER_NAME
from lowtide.files import checksum_file
from lowtide.scratch import scratch_folder
from lowtide.tokenizer.tokenizer import Tokenizer

__all__ = ["require_own_files"]


def require_own_files(tokenizer: Tokenizer, out_dir: Path, record: Mapping[str, Any]) -> None:
    """Refuse a finished folder in which a file has changed.

    `tokenizer` is the current content of tokenizer.json; the other files are written again from it
    and compared.
    """
    changed = _find_changed(tokenizer, out_dir, record)
    if changed is not None:
        raise DataError(
            f"{changed} is missing, damaged, or not the one that was learned here",
            path=out_dir / changed,
            next_step="remove this folder, and give the command again",
        )


def _find_changed(tokenizer: Tokenizer, out_dir: Path, record: Mapping[str, Any]) -> str | None:
    if record.get("fingerprint", tokenizer.fingerprint) != tokenizer.fingerprint:
        return TOKENIZER_NAME
    if tokenizer.kind != "bpe":
        return None
    with scratch_folder("tokenizer") as folder:
        tokenizer.save_vocabulary(folder)
        for made in sorted(folder.iterdir()):
            path = out_dir / made.name
            if not path.is_file() or checksum_file(path) != checksum_file(made):
                return made.name
    return None
