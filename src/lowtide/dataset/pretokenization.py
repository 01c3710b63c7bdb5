"""Turn text files into .npy files of ids beside them, in bounded memory.

In:      FILE (plain text; or compressed, jsonl, parquet, by documents)
Out:     FILE with the suffix .npy: a NumPy header, then ids (uint16 if they fit, else int32);
         its record FILE.npy.json; the tokenizer in FILE.tokenizer, unless it is gpt2
Memory:  windows of text and their ids, for each worker; a stretch of plain text that no token
         border cuts is held once, or refused with the budget it needs
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from lowtide import files
from lowtide.corpus.cutting import PROBE_BYTES
from lowtide.corpus.differences import find_changed_setting
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import InputFile, changed_input, expand_inputs, has_changed
from lowtide.corpus.reading import (
    ReadingSettings,
    is_plain_text,
    is_text,
    iter_documents,
)
from lowtide.dataset.npywriting import (
    Encoded,
    PlainFile,
    checksum_npy,
    encode_batches,
    encode_documents,
    iter_batches,
    iter_parts,
    write_encoded,
)
from lowtide.dataset.pretokenizingplan import (
    SharedFiles,
    character_bytes,
    plan_workers,
    reading_of,
    stream_bytes,
)
from lowtide.dataset.provenance import (
    Provenance,
    SourceText,
    describe_source_change,
    load_own_tokenizer,
    npy_path,
    read_provenance,
    record_path,
    tokenizer_dir,
    write_provenance,
)
from lowtide.dataset.settings import PretokenizeSettings
from lowtide.dataset.tokenfiles.npy import NPY_HEADER_BYTES
from lowtide.errors import DataError, UsageError
from lowtide.filenames import METRICS_NAME, TOKENIZER_NAME
from lowtide.freenames import require_free_names
from lowtide.keywords import takes_keywords
from lowtide.memory import format_size
from lowtide.notebooks import ResultList, shown_in_notebooks
from lowtide.progress import Progress
from lowtide.publishing import PublishGroup
from lowtide.quickclasses import dataclass
from lowtide.sparelocks import reusing_locks
from lowtide.stores.paths import checksum_path, is_stored
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import id_bytes
from lowtide.unfinished import list_leftovers, listing_folders_once

__all__ = ["PretokenizeResult", "iter_pretokenized", "pretokenize_file", "pretokenize_files"]

_ALONE_BYTES = 1 << 20  # a file this large is published at once: its work is worth the wait


@shown_in_notebooks()
@dataclass(frozen=True)
class PretokenizeResult:
    """The result of a file."""

    path: Path
    text_bytes: int
    num_tokens: int
    dtype: np.dtype[Any]
    tokenizer: str
    seconds: float
    peak_bytes: int
    was_there: bool = False
    """True if the file existed already, made from the same text in the same way."""
    is_plain: bool = True
    """False if `text_bytes` are of a compressed file, or of one that contains more than text."""


@takes_keywords(PretokenizeSettings)
def pretokenize_file(settings: PretokenizeSettings) -> PretokenizeResult:
    """Encode a text file into a .npy; `<|endoftext|>` in it becomes the token.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = path.write_text("low tide")
    >>> result = pretokenize_file(file=path, tokenization="gpt2")
    >>> np.load(result.path).tolist()
    [9319, 20013]
    """
    results = pretokenize_files(settings)
    if len(results) != 1:
        raise UsageError(f"{len(results)} files, expected one", next_step="pretokenize_files")
    return results[0]


@takes_keywords(PretokenizeSettings)
def pretokenize_files(settings: PretokenizeSettings) -> list[PretokenizeResult]:
    """Encode every text file named into a .npy of its own, one after the other."""
    return ResultList(iter_pretokenized(settings))


def iter_pretokenized(settings: PretokenizeSettings) -> Iterator[PretokenizeResult]:
    """Yield each result when its file is written, so that no list of results is held."""
    sources = expand_inputs(settings.file)
    if settings.out_path is not None and len(sources) > 1:
        raise UsageError(
            f"--out-path is one file, and {len(sources)} are read",
            next_step="leave --out-path out: each .npy goes beside its text",
        )
    if settings.out_path is not None and settings.out_path.is_dir():
        raise UsageError(
            "--out-path is a folder, expected the path of a file",
            path=settings.out_path,
            next_step=f"--out-path {settings.out_path / npy_path(sources[0].path).name}",
        )
    if settings.out_path is not None and _is_input(settings.out_path, sources[0]):
        raise UsageError(
            "--out-path is the text itself",
            path=settings.out_path,
            next_step=f"--out-path {npy_path(sources[0].path)}",
        )
    if settings.out_path is None and any(is_stored(source.path) for source in sources):
        raise UsageError(
            f"{sources[0].path} lies in an object store, where no .npy is written",
            next_step="give --out-path FILE.npy, for one object at a time",
        )
    places: dict[int, int] = {}  # by a hash of its path: many paths need much memory
    for place, source in enumerate(sources):
        out = settings.out_path or npy_path(source.path)
        first = places.setdefault(xxhash.xxh3_64_intdigest(os.fsencode(out)), place)
        if first != place:
            raise UsageError(
                f"{sources[first].path.name} and {source.path.name} would have the same .npy file",
                path=out,
                next_step="pretokenize one at a time, and name each result with --out-path",
            )
    shared = SharedFiles(settings, sources)
    results: list[PretokenizeResult] = []
    with listing_folders_once(), reusing_locks(), PublishGroup() as group:
        for source in sources:
            out = settings.out_path or npy_path(source.path)
            results.append(_pretokenize(shared, source, out, group))
            if group.is_full or not group.num_waiting or source.size_bytes > _ALONE_BYTES:
                group.publish()
                yield from results
                results.clear()
    yield from results


def _is_input(path: Path, source: InputFile) -> bool:
    """True if an output is the input, by whatever name: its owner would be told to remove it."""
    if is_stored(path) or is_stored(source.path) or not source.format.is_file:
        return False
    return path.exists() and path.samefile(source.path)


def _pretokenize(
    shared: SharedFiles, source: InputFile, out: Path, group: PublishGroup
) -> PretokenizeResult:
    if out.exists():
        return _require_same(shared, source, out)
    files.require_local(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    group.hold(files.hold_lock(out))
    if out.exists():  # by a command that has just ended
        return _require_same(shared, source, out)
    for left in list_leftovers(record_path(out), "partial"):
        left.unlink(missing_ok=True)
    return _encode(shared, source, out, group)


def _require_same(shared: SharedFiles, source: InputFile, out: Path) -> PretokenizeResult:
    """Return the existing result if this same command would make it; else raise an error."""
    settings, known = shared.settings, read_provenance(out)
    if known is None:
        difference = "nothing says what it was made of"
    else:
        difference = find_changed_setting(known.settings, _text_settings(settings))
        difference = difference or _tokenizer_difference(known, shared)
        difference = difference or describe_source_change(known.source, source.path)
    if known is None or difference is not None:
        raise UsageError(
            f"{out.name} is there already, and {difference}",
            path=out,
            next_step="remove it, or name another --out-path",
        )
    size = NPY_HEADER_BYTES + known.num_tokens * np.dtype(known.dtype).itemsize
    is_whole = out.stat().st_size == size
    if is_whole and known.xxh3_128 is not None:
        is_whole = files.checksum_file(out) == known.xxh3_128
    if not is_whole:
        raise DataError(
            f"{out.name} is damaged: it is not what was written",
            path=out,
            next_step="remove it, and give the command again",
        )
    if known.tokenization != "gpt2":
        load_own_tokenizer(out, known)  # the tokenizer is part of the output too
    return PretokenizeResult(
        path=out,
        text_bytes=source.size_bytes,
        num_tokens=known.num_tokens,
        dtype=np.dtype(known.dtype),
        tokenizer=known.tokenization,
        seconds=0.0,
        peak_bytes=0,
        was_there=True,
        is_plain=is_plain_text(source, encoding=settings.encoding),
    )


def _tokenizer_difference(known: Provenance, shared: SharedFiles) -> str | None:
    settings = shared.settings
    if "char" in (known.tokenization, settings.tokenization):
        same = known.tokenization == settings.tokenization
    else:
        same = shared.named_tokenizer.fingerprint == known.tokenizer_fingerprint
    if same:
        return None
    return f"it was made with tokenizer {known.tokenization}, now it is {settings.tokenization}"


def _text_settings(settings: PretokenizeSettings) -> dict[str, Any]:
    """The settings that decide which text of the file is encoded."""
    names = ("text_field", "encoding", "skip_bad_inputs")
    return {name: getattr(settings, name) for name in names}


def _encode(
    shared: SharedFiles, source: InputFile, out: Path, group: PublishGroup
) -> PretokenizeResult:
    settings = shared.settings
    is_plain = is_plain_text(source, encoding=settings.encoding)
    reading = reading_of(settings)
    needed = reader_bytes([source], reading)  # before the budget: its imports count as program
    budget = shared.make_budget()
    streams = stream_bytes(settings.tokenization, is_plain=is_plain, reading=needed)
    workers = plan_workers(shared, source, budget, stream_bytes=streams)
    reading = replace(
        reading,
        reader_bytes=needed + budget.remaining_bytes,
        budget_bytes=budget.total_bytes,
    )
    metrics_path = out.with_name(f".{out.name}.{METRICS_NAME}")  # hidden
    with Progress(
        "pretokenize",
        budget_bytes=budget.total_bytes,
        metrics_path=metrics_path,
        is_brief=source.size_bytes <= _ALONE_BYTES,
    ) as progress:
        reading = replace(reading, on_notice=progress.note)
        tokenizer = _load_tokenizer(shared, source, reading, progress)
        _require_free_place(out, tokenizer)
        if tokenizer.kind == "char":
            budget.reserve("characters", wanted_bytes=character_bytes(tokenizer.vocab_size))
        dtype = np.dtype("<u2" if id_bytes(tokenizer.vocab_size) == 2 else "<i4")
        _check_disk(source, out, dtype)
        plain = None
        if tokenizer.kind == "bpe" and is_plain and _begins_as_text(source, reading):
            plain = PlainFile(
                source,
                out,
                tokenizer,
                dtype,
                workers,
                budget,
                settings.num_workers,
                lambda: shared.find_stretch(source),
                progress.note,
                group,
            )
        with contextlib.ExitStack() as phases:
            finish = _Finish(settings, source, out, tokenizer, dtype, progress, phases, group)
            count = _write_ids(plain, finish, reading, workers)
    return PretokenizeResult(
        path=out,
        text_bytes=source.size_bytes,
        num_tokens=count,
        dtype=dtype,
        tokenizer=tokenizer.name,
        seconds=progress.seconds,
        peak_bytes=progress.peak_bytes,
        is_plain=is_plain,
    )


def _write_ids(
    plain: PlainFile | None, finish: _Finish, reading: ReadingSettings, num_workers: int
) -> int:
    """Write the ids of a file, directly from its bytes or text by text; return their number."""
    source = finish.source
    phase = finish.phases.enter_context(
        finish.progress.phase("encode", total=source.size_bytes, unit="B")
    )
    if plain is not None:
        return plain.encode(phase.update, finish.write)
    encoded = _encode_texts(finish.tokenizer, source, reading, num_workers)
    return write_encoded(
        encoded, source, finish.out, finish.dtype, phase.update, finish.write, finish.group
    )


def _encode_texts(
    tokenizer: Tokenizer, source: InputFile, reading: ReadingSettings, num_workers: int
) -> Encoded:
    """Encode inputs that native code does not read directly from the file."""
    if tokenizer.kind == "package":
        return encode_documents(iter_parts(source, reading), tokenizer)
    return encode_batches(iter_batches(source, reading), tokenizer, num_workers)


def _begins_as_text(source: InputFile, reading: ReadingSettings) -> bool:
    """False for a binary file that is to be skipped, which reading by documents does."""
    silent = replace(reading, on_notice=list[str]().append)  # reported when the file is read
    with source.path.open("rb", buffering=0) as file:
        return is_text(source, file.read(PROBE_BYTES), silent)


@dataclass(frozen=True)
class _Finish:
    """Writes the record and the tokenizer just before the .npy gets its final name."""

    settings: PretokenizeSettings
    source: InputFile
    out: Path
    tokenizer: Tokenizer
    dtype: np.dtype[Any]
    progress: Progress
    phases: contextlib.ExitStack
    """The progress phase that ends here."""
    group: PublishGroup

    def write(self, count: int, checksum: str, file: IO[bytes]) -> None:
        """Write the record and the tokenizer; a text that changed meanwhile is an error."""
        self.phases.close()
        size = os.fstat(file.fileno()).st_size
        with self.progress.phase("checksum", total=size, unit="B") as phase:
            npy_checksum = checksum_npy(file, phase.advance)
        source = self.source
        if has_changed(source) and (
            not source.path.is_file() or checksum_path(source.path) != checksum
        ):
            raise changed_input(source)
        if self.settings.tokenization != "gpt2":
            tokenizer_dir(self.out).mkdir(exist_ok=True)
            self.tokenizer.save(tokenizer_dir(self.out))
        write_provenance(
            self.out,
            Provenance(
                num_tokens=count,
                dtype=self.dtype.name,
                vocab_size=self.tokenizer.vocab_size,
                tokenization=self.settings.tokenization,
                tokenizer_fingerprint=self.tokenizer.fingerprint,
                source=SourceText(
                    source.path.name, source.size_bytes, source.modified_ns, checksum
                ),
                settings=_text_settings(self.settings),
                xxh3_128=npy_checksum,
            ),
            self.group.add_record,
        )


def _require_free_place(out: Path, tokenizer: Tokenizer) -> None:
    """Refuse to overwrite a tokenizer that is not of an earlier .npy, which would have a record."""
    folder = tokenizer_dir(out)
    if record_path(out).exists() or not (folder / TOKENIZER_NAME).exists():
        return
    with contextlib.suppress(DataError):
        if Tokenizer.load(folder).fingerprint == tokenizer.fingerprint:
            return  # killed just before the record
    next_step = "choose another --out-path"
    require_free_names(folder, [TOKENIZER_NAME], next_step=next_step)


def _check_disk(source: InputFile, out: Path, dtype: np.dtype[Any]) -> None:
    needed, free = source.size_bytes // 2 * dtype.itemsize, files.free_disk_bytes(out.parent)
    if needed > free:
        raise DataError(
            f"the ids may need {format_size(needed)} of disk, {format_size(free)} are free",
            path=out,
            next_step="free some space",
        )


def _load_tokenizer(
    shared: SharedFiles, source: InputFile, reading: ReadingSettings, progress: Progress
) -> Tokenizer:
    if shared.settings.tokenization != "char":
        return shared.named_tokenizer
    characters: set[str] = set()
    with progress.phase("characters", total=source.size_bytes, unit="B") as phase:
        for document in iter_documents([source], reading):
            characters.update(document.text.decode("utf-8", "replace"))
            phase.advance(len(document.text))
    return Tokenizer.from_characters(sorted(characters))
