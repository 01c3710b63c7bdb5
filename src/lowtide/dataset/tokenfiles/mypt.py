"""Folders of the program mypt: uint32 shards in train and val, and its character tokenizer.

In:      a folder with dataset_metadata.json, train/*.bin, val/*.bin, tokenizer_state.json
Out:     TokenFile rows; the Tokenizer its ids were made with
Memory:  its vocabulary of characters
"""

from __future__ import annotations

from pathlib import Path

from lowtide import files
from lowtide.arrays import np
from lowtide.dataset.tokenfiles.raw import open_raw
from lowtide.dataset.tokenfiles.streams import Opening, TokenFile
from lowtide.errors import DataError
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import END_OF_TEXT, UNKNOWN, Vocabulary

__all__ = ["list_mypt_files", "load_mypt_tokenizer", "open_mypt"]

_STATE_NAME = "tokenizer_state.json"


def list_mypt_files(path: Path) -> list[Path]:
    """All shards; the folder of each is its split."""
    return [file for split in ("train", "val") for file in sorted((path / split).glob("*.bin"))]


def open_mypt(path: Path, given: Opening) -> TokenFile:
    """Open one shard."""
    return open_raw(path, Opening(np.dtype("<u4"), given.on_notice))


def load_mypt_tokenizer(folder: Path, named: str) -> Tokenizer:
    """Load the tokenizer that is stored with the shards, or else the named one."""
    state_path = folder / _STATE_NAME
    state = files.read_json(state_path) if state_path.is_file() else {"token_kind": "gpt2"}
    kind = state.get("token_kind") if isinstance(state, dict) else None
    if kind != "char":
        if kind != "gpt2" and named == "gpt2":
            raise DataError(
                f"token_kind {kind!r} is not known, expected gpt2 or char",
                path=state_path,
                next_step="name the tokenizer of these ids with --tokenizer",
            )
        return Tokenizer.load(named)
    characters = state.get("chars")
    if isinstance(characters, str):
        characters = list(characters)
    if not isinstance(characters, list) or not all(
        isinstance(sign, str) and len(sign) == 1 for sign in characters
    ):
        raise DataError("chars must be a list of single characters", path=state_path)
    # The ids are indices in this list, so the special tokens come after it.
    names = (END_OF_TEXT, UNKNOWN)
    vocabulary = Vocabulary(
        kind="char",
        tokens=tuple(
            [sign.encode("utf-8", "surrogatepass") for sign in characters]
            + [name.encode() for name in names]
        ),
        special_tokens={name: len(characters) + place for place, name in enumerate(names)},
    )
    return Tokenizer(vocabulary, name="char")
