"""The dataset that `append` extends, and the metadata that combines old and new shards.

In:      a dataset, with the shards it had when the append started; new shards, elsewhere
Out:     its properties that the new text has to use: tokenizer, split, score threshold, next
         numbers of shards and inputs; new metadata, written last
Memory:  a row for each shard and each input
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.corpus.inputhashes import InputHashes
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.ranking import ScoreCut, read_cut
from lowtide.corpus.reading import ReadingSettings
from lowtide.dataset import layout
from lowtide.dataset.encoding import SourceCounts
from lowtide.dataset.identity import iter_sources, list_contents
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.storeddatasets import open_small_files
from lowtide.dataset.tokenfiles.shards import ShardInfo, documents_path, shard_number, shard_tag
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME, TOKENIZER_NAME
from lowtide.longjson import Rows
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import END_OF_TEXT, Tokenizer

__all__ = ["Added", "GrownDataset", "first_free_number", "unknown_characters"]

_KNOWN = {
    "format_version", "total_tokens", "total_documents", "total_shards", "train_shards",
    "val_shards", "train_tokens", "val_tokens", "tokens_per_shard", "tokenization",
    "vocab_size", "dtype", "tokenizer_fingerprint", "input_files", "shards", "settings_checksum",
}  # fmt: skip
"""Keys that are replaced; the rest of the metadata is kept."""


@dataclass(frozen=True)
class Added:
    """The results and counts of an append."""

    inputs: Sequence[InputFile]
    reading: ReadingSettings
    contents: InputHashes
    sources: SourceCounts
    shards: Mapping[str, Sequence[ShardInfo]]
    """The new shards, at their final paths."""
    report: dict[str, Any]
    notices: list[str]
    seen: dict[str, Any] | None
    """The row of the new text's hashes; None if the dataset stores none."""
    logs: dict[str, Any]

    @property
    def num_tokens(self) -> int:
        """Tokens of all new shards."""
        return sum(shard.num_tokens for shards in self.shards.values() for shard in shards)


@dataclass(frozen=True)
class GrownDataset:
    """A dataset, and its state before the append."""

    info: layout.DatasetInfo
    stored: PrepareSettings
    """The settings that it was prepared with."""
    shards: Mapping[str, Sequence[ShardInfo]]
    first_number: int
    """Of new shards."""
    version: str = ""
    """Checksum of its metadata, if several workers have to see the same (staged.datasetplace)."""

    @property
    def root(self) -> Path:
        """Its folder."""
        return self.info.root

    @property
    def seen(self) -> list[Any]:
        """Metadata rows of the files with hashes of documents."""
        return list(self.info.metadata.get("seen", []))

    @property
    def keeps_hashes(self) -> bool:
        """True if it stores hashes of its documents, to which those of new text are added."""
        return self.stored.dedup and bool(self.seen)

    @property
    def first_input(self) -> int:
        """The number of the first new input."""
        return len(self.info.metadata.get("input_files", []))

    @property
    def num_appended(self) -> int:
        """Number of earlier appends."""
        return len(self.info.metadata.get("appended", []))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, after checking that the ids were made with it."""
        with open_small_files(self.root) as folder:
            tokenizer = Tokenizer.load(folder)
        if tokenizer.fingerprint != self.info.tokenizer_fingerprint:
            raise DataError(
                f"{TOKENIZER_NAME} is not the one the ids were made with",
                path=self.info.tokenizer_path,
                next_step=f"lowtide verify {self.root}",
            )
        said, end_id = self.info.vocab_size, self.info.metadata.get("end_of_text_id")
        if said != tokenizer.vocab_size:
            raise self._damaged(
                f"vocab_size is {said}, {TOKENIZER_NAME} has {tokenizer.vocab_size}"
            )
        if end_id is not None and end_id not in tokenizer.special_tokens.values():
            raise self._damaged(f"end_of_text_id is {end_id}, no special token's")
        return tokenizer

    def _damaged(self, what: str) -> DataError:
        return DataError(
            f"{METADATA_NAME} is damaged: {what}",
            path=self.root / METADATA_NAME,
            next_step=f"bring back the file as lowtide wrote it: lowtide verify {self.root}",
        )

    @property
    def end_id(self) -> int | None:
        """The id that ends documents here; earlier versions did not store it."""
        written = self.info.metadata.get("end_of_text_id")
        if written is None:
            return self.tokenizer.special_tokens.get(END_OF_TEXT)
        return int(written)

    @property
    def split_mode(self) -> str:
        """How documents are split into train and val: by content, or at the end."""
        return self.info.metadata.get("split", {}).get("mode", "content")

    @property
    def val_fraction(self) -> float:
        """The share of val."""
        split = self.info.metadata.get("split", {})
        return float(split.get("val_fraction", self.stored.val_fraction))

    @cached_property
    def cut(self) -> ScoreCut | None:
        """The dataset's own score cut: new inputs alone do not show which documents are best."""
        if self.stored.keep_top is None:
            return None
        return read_cut(self.info.metadata.get("cleaning", {}).get("score"))

    def notices(self) -> list[str]:
        """Notices for the user before text is added."""
        found: list[str] = []
        if self.stored.dedup and not self.seen and "cleaning" in self.info.metadata:
            found.append(
                "this dataset keeps no hashes of its documents, as those of earlier versions: "
                "short lines of a document that is there already may be added"
            )
        if self.cut is not None:
            found.append(
                "documents stay whose score is at least the dataset's own cut, "
                f"{self.cut.score:.6g}"
            )
        return found

    def shard_tag(self, inputs: Sequence[InputFile], contents: InputHashes) -> str:
        """A tag by content: of the new texts, and of the dataset they are added to."""
        before = [
            [shard.num_tokens, shard.checksum or shard.path.name]
            for split in layout.SPLITS
            for shard in self.shards[split]
        ]
        return shard_tag(self.info.tokenizer_fingerprint, before, list_contents(inputs, contents))

    def move_in(self, added: Mapping[str, Sequence[ShardInfo]]) -> dict[str, list[ShardInfo]]:
        """Move finished shards into the dataset, before its metadata lists them."""
        moved: dict[str, list[ShardInfo]] = {}
        for split, shards in added.items():
            moved[split] = []
            for shard in shards:
                path = self.root / split / shard.path.name
                _move(documents_path(shard.path), documents_path(path))
                _move(shard.path, path)
                moved[split].append(replace(shard, path=path))
        return moved

    def write(self, added: Added) -> layout.DatasetInfo:
        """Write the metadata, after which the new shards belong to the dataset."""
        self.write_metadata(added, self.root)
        return layout.load_dataset_info(self.root)

    def write_metadata(self, added: Added, root: Path) -> None:
        """Write the dataset's metadata with the additions into a folder."""
        metadata = self.info.metadata
        new_files = Rows(len(added.inputs), lambda: (str(row.path) for row in added.inputs))
        event = {
            "input_files": new_files,
            "first_shard": self.first_number,
            "tokens": added.num_tokens,
            "cleaning": added.report,
            "notices": added.notices,
            **added.logs,
        }
        sources = Rows(
            len(added.inputs),
            lambda: added.sources.iter_json(
                iter_sources(added.inputs, added.reading, added.contents)
            ),
        )
        seen = self.seen if added.seen is None else [*self.seen, added.seen]
        layout.write_metadata(
            root,
            shards={
                split: [
                    replace(shard, path=root / split / shard.path.name)
                    for shard in (*self.shards[split], *added.shards[split])
                ]
                for split in layout.SPLITS
            },
            vocab_size=self.info.vocab_size,
            tokenizer_fingerprint=self.info.tokenizer_fingerprint,
            tokenization=metadata.get("tokenization", "unknown"),
            tokens_per_shard=self.stored.tokens_per_shard,
            input_files=_joined(metadata.get("input_files", []), new_files),
            more={
                **{key: value for key, value in metadata.items() if key not in _KNOWN},
                "sources": _joined(metadata.get("sources", []), sources),
                **({"seen": seen} if seen else {}),
                "appended": [*metadata.get("appended", []), event],
            },
        )


def first_free_number(info: layout.DatasetInfo) -> int:
    """The number of the first shard that is added to a dataset."""
    shards = (shard for split in layout.SPLITS for shard in info.shards[split])
    numbers = [shard_number(shard.path) for shard in shards]
    return 1 + max((number for number in numbers if number is not None), default=-1)


def unknown_characters(tokenizer: Tokenizer, codes: Sequence[int]) -> list[str]:
    """The characters of the new text that a character tokenizer does not know."""
    if tokenizer.kind != "char":
        return []
    known = {tokenizer.token_bytes(number).decode() for number in range(tokenizer.vocab_size)}
    strange = [chr(code) for code in codes if chr(code) not in known]
    if not strange:
        return []
    shown = " ".join(repr(character) for character in strange[:8])
    return [f"{len(strange)} characters are not in the vocabulary and became <unk>: {shown}"]


def _move(source: Path, target: Path) -> None:
    """Move a finished file, also from another disk; do nothing if it was already moved."""
    try:
        source.replace(target)
    except FileNotFoundError:
        if not target.exists():
            raise
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with files.atomic_file(target) as file, source.open("rb") as data:
            shutil.copyfileobj(data, file, 1 << 20)
        source.unlink()


def _joined(first: Sequence[Any], second: Sequence[Any]) -> Rows:
    return Rows(len(first) + len(second), lambda: chain(first, second))
