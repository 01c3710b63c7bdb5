"""Validation data for a run that streams its text: documents held out by a hash of their content.

In:      the texts of a stream, a tokenizer
Out:     RUN/data/val: ids of the first documents held out, and the record of this choice
Memory:  one group of texts and their ids

The choice at the start of a run holds for all of it: a resumed run reads the record. A run of an
earlier version has no record, and continues without held-out documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import DataError
from lowtide.files import atomic_file, read_json, write_json
from lowtide.loader.heldout import is_held_out
from lowtide.loader.textencoders import make_encoder
from lowtide.loader.texts import Place, Text, TextSource, iter_encoded
from lowtide.loader.windows import TokenDataset
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.training.checkpoints import RunFolder
from lowtide.training.settings import TrainSettings

__all__ = ["HeldOut", "hold_out"]

_RECORD, _TOKENS = "held_out.json", "tokens.bin"


@dataclass(frozen=True)
class HeldOutLimits:
    """How much text is searched for validation documents, and how much is enough."""

    kept_bytes: int = 2 << 20
    scan_bytes: int = 32 << 20
    fewest_documents: int = 100


_LIMITS = HeldOutLimits()


@dataclass(frozen=True)
class HeldOut:
    """The documents kept from training."""

    fraction: float
    """Share of all documents; 0 if none are held out."""
    val: TokenDataset | None


def hold_out(
    settings: TrainSettings,
    texts: TextSource,
    tokenizer: Tokenizer,
    note: Callable[[str], None],
    *,
    limits: HeldOutLimits = _LIMITS,
) -> HeldOut:
    """Choose the documents that a stream holds out, and write the first ones, once per run."""
    folder = settings.run.folder / "data" / "val"
    record = _read_record(folder / _RECORD)
    if RunFolder(settings.run.folder).exists():
        if record is None:
            note("this run began without held-out documents, and goes on without")
            return HeldOut(0.0, None)
        asked = float(record["asked"])
    else:
        asked = 0.0 if settings.data.val_data_path is not None else settings.data.val_fraction
    identity = {"asked": asked, "max_examples": settings.data.max_examples}
    identity |= {"texts": texts.fingerprint, "tokenizer": tokenizer.fingerprint}
    if record is None or any(record.get(name) != value for name, value in identity.items()):
        scan = _Scan(texts, asked, settings.data.max_examples, limits)
        record = {**identity, **_write(folder, scan, tokenizer)}
        write_json(folder / _RECORD, record)
    return _open(settings.model.seq_len, folder, tokenizer, record, note)


def _read_record(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    record = read_json(path)
    numbers = ("asked", "fraction", "documents", "seen", "num_tokens")
    if not isinstance(record, dict) or not all(
        type(record.get(name)) in (int, float) for name in numbers
    ):
        raise DataError(
            "this is not the record of what a stream holds out",
            path=path,
            next_step=f"bring it back as it was; or start anew: --overwrite removes the run that "
            f"{path.parent.parent.parent} holds",
        )
    return record


@dataclass
class _Scan:
    """The documents held out among a source's first ones, as a source."""

    source: TextSource
    fraction: float
    max_documents: int | None
    limits: HeldOutLimits
    seen: int = 0
    documents: int = 0

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    @property
    def text_bytes(self) -> int | None:
        return None

    def iter_texts(self, *, seed: int | None, place: Place | None = None) -> Iterator[Text]:
        scanned = kept = 0
        for text in self.source.iter_texts(seed=seed, place=place):
            scanned += len(text.data)
            self.seen += text.ends_document
            if is_held_out(text, self.fraction):
                self.documents += 1
                kept += len(text.data)
                yield replace(text, data=text.data[: self.limits.kept_bytes])
            is_over = self.max_documents is not None and self.seen >= self.max_documents
            is_enough = kept >= self.limits.kept_bytes or scanned >= self.limits.scan_bytes
            if is_over or is_enough:
                return


def _write(folder: Path, scan: _Scan, tokenizer: Tokenizer) -> dict[str, Any]:
    """Write the ids of the first documents held out; if they are too few, none are held out."""
    folder.mkdir(parents=True, exist_ok=True)
    num_tokens = 0
    with atomic_file(folder / _TOKENS) as file:
        if scan.fraction:
            for _, ids in iter_encoded(scan, make_encoder(tokenizer), seed=None):
                file.write(np.ascontiguousarray(ids, dtype="<u4").data)
                num_tokens += len(ids)
    enough = scan.seen >= scan.limits.fewest_documents and scan.documents > 0
    return {
        "fraction": scan.fraction if enough else 0.0,
        "documents": scan.documents,
        "seen": scan.seen,
        "num_tokens": num_tokens,
    }


def _open(
    seq_len: int,
    folder: Path,
    tokenizer: Tokenizer,
    record: dict[str, Any],
    note: Callable[[str], None],
) -> HeldOut:
    fraction = float(record["fraction"])
    if not fraction:
        if record["asked"]:
            note(
                "no validation: too few documents at the beginning of the stream to hold some out "
                f"({record['seen']}); --val-data-path names ids to validate on"
            )
        return HeldOut(0.0, None)
    if record["num_tokens"] <= seq_len:
        note(f"no validation: {record['num_tokens']} tokens held out give no row")
        return HeldOut(fraction, None)
    val = TokenDataset(
        folder / _TOKENS,
        split="all",
        seq_len=seq_len,
        dtype="uint32",
        vocab_size=tokenizer.vocab_size,
    )
    note(
        f"validation: {fraction:.0%} of all documents are held out by their content; the first "
        f"{record['documents']:,} ({record['num_tokens']:,} tokens) are in {folder}"
    )
    return HeldOut(fraction, val)
