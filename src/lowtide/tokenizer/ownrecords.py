"""Check that a tokenizer.json is unchanged, by the record in its folder.

In:      the folder of a tokenizer, a dataset, a run or an exported model; the tokenizer read there
Out:     DataError if training.json, dataset_metadata.json or checksums.json has another fingerprint
Memory:  the beginning or the end of a record, 64 KiB

With a flipped bit in a token the file is still a valid tokenizer, but ids or texts are different.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lowtide.checksumrecords import verify_folder
from lowtide.errors import DataError
from lowtide.filenames import LEARNED_NAME, METADATA_NAME, TOKENIZER_NAME
from lowtide.files import open_file
from lowtide.tokenizer.vocabulary import Vocabulary

__all__ = ["require_recorded"]

_PART_BYTES = 1 << 16
# At the end of one, and before the lists of the other; neither is read whole, as they may be long.
_LEARNED = re.compile(rb'\n  "fingerprint": "([0-9a-f]+)"\n}\s*\Z')
_OF_DATASET = re.compile(
    rb'\A{\n  "format_version".*?\n  "tokenizer_fingerprint": "([0-9a-f]+)"', re.S
)


def require_recorded(vocabulary: Vocabulary, path: Path) -> None:
    """Refuse a tokenizer.json that differs from a record beside it; accept one without a record."""
    if path.name != TOKENIZER_NAME:
        return
    folder = path.parent
    verify_folder(folder, only=[TOKENIZER_NAME])
    for name, pattern in ((LEARNED_NAME, _LEARNED), (METADATA_NAME, _OF_DATASET)):
        said = _find(folder / name, pattern)
        if said is not None and said != vocabulary.fingerprint:
            raise DataError(
                f"{TOKENIZER_NAME} is damaged, or was replaced: its fingerprint is "
                f"{vocabulary.fingerprint}, {name} says {said}",
                path=path,
                next_step=f"bring it back as it was; if it is one of yours, keep it in a folder "
                f"without {name}",
            )


def _find(record: Path, pattern: re.Pattern[bytes]) -> str | None:
    """The value in a record; None if it is missing or unreadable (reported elsewhere)."""
    try:
        with open_file(record) as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - _PART_BYTES) if pattern is _LEARNED else 0
            part = os.pread(file.fileno(), _PART_BYTES, start)
    except OSError:
        return None
    found = pattern.search(part)
    return None if found is None else found[1].decode()
