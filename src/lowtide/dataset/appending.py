"""Add new text to a finished dataset, as if it had come after what is there.

In:      a dataset, and files of new text (AppendSettings)
Out:     more shards, numbered on; new metadata, written last; no existing shard is touched
Memory:  as preparation; what is there is decoded a few MiB at a time

Duplicates of what is there are left out: the dataset's own tokens are decoded and their lines
hashed again, so this works for shards of any origin and nothing has to be kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import files
from lowtide.corpus.blocks import (
    BlockTable,
    CleanJob,
    InputHashes,
    load_block_table,
    write_block,
)
from lowtide.corpus.inputs import InputList, expand_inputs
from lowtide.corpus.ranking import ScoreCut, read_cut
from lowtide.corpus.reading import (
    BLOCK_BYTES,
    ReadingSettings,
    Segment,
    Stream,
    TextBlock,
    plan_streams,
)
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file
from lowtide.dataset import layout
from lowtide.dataset.encoding import Coder, EncodeJob, SourceCounts
from lowtide.dataset.finishing import find_other_setting, plan_models
from lowtide.dataset.identity import (
    drop_copies,
    drop_known,
    iter_sources,
    list_contents,
    require_unchanged,
)
from lowtide.dataset.preparation import (
    naming_folder,
    noticing_changes,
    run_cleaning,
    run_deduplication,
    run_encoding,
    run_sharding,
)
from lowtide.dataset.resources import Inputs, Shares, check_disk, plan_shares
from lowtide.dataset.seen import iter_seen, write_seen, write_seen_block
from lowtide.dataset.settings import AppendSettings, PrepareSettings
from lowtide.dataset.sharding import ShardJob, plan_shards
from lowtide.dataset.workfolder import WORK_NAME, open_work, read_facts, remove_work
from lowtide.errors import DataError, UsageError
from lowtide.keywords import takes_keywords
from lowtide.longjson import Rows
from lowtide.memory import MemoryBudget
from lowtide.notebooks import shown_in_notebooks
from lowtide.progress import METRICS_NAME, Progress
from lowtide.settings import build_settings
from lowtide.tokenizer import END_OF_TEXT, Tokenizer

__all__ = ["AppendResult", "append_to_dataset"]

_DECODE_TOKENS = 1 << 20
_NOTES = "shards"
"""Where rows of finished shards are noted."""
_HELD_BYTES = BLOCK_BYTES  # longer documents are compared line by line, as in preparation


@shown_in_notebooks()
@dataclass(frozen=True)
class AppendResult:
    """What was added."""

    info: layout.DatasetInfo
    report: dict[str, Any]
    notices: list[str]
    added_tokens: int
    added_shards: int
    was_there: bool = False
    """True if every input was in the dataset already, and nothing was touched."""


@takes_keywords(AppendSettings)
def append_to_dataset(settings: AppendSettings) -> AppendResult:
    """Add files of text to a dataset, with its own tokenizer and settings."""
    layout.read_metadata(settings.dataset_dir)  # a folder that is no dataset is named so first
    with naming_folder(settings.dataset_dir), files.hold_lock(settings.dataset_dir):
        return _append(settings)


def _append(settings: AppendSettings) -> AppendResult:
    if settings.restart:
        _give_up(settings.dataset_dir)
    info = layout.load_dataset_info(settings.dataset_dir)
    if (done := _finish_cleaning_up(info)) is not None:
        return done
    stored = _stored_settings(info, settings)
    notices: list[str] = []
    found = expand_inputs(settings.input_files, on_notice=notices.append)
    needs = Inputs.of(
        found, stored, tokenizer=info.root
    )  # first: what it imports is a part of the program
    budget = MemoryBudget.from_setting(settings.memory)
    shares = plan_shares(stored, budget, needs)
    with (
        Progress(
            "append",
            budget_bytes=budget.total_bytes,
            metrics_path=info.root / METRICS_NAME,
        ) as progress,
        WorkerPool(shares.num_workers) as pool,
    ):
        for notice in notices:
            progress.note(notice)
        reading = stored.reading(reader_bytes=shares.reader_bytes, budget_bytes=budget.total_bytes)
        inputs = _find_new(info, found, stored, reading, progress.note)
        if not inputs:
            progress.metrics_path = None
            if settings.restart:
                remove_work(info.root)
            return AppendResult(info, {}, [], 0, 0, was_there=True)
        check_disk(info.root, inputs, progress, one_pass_bytes=0)
        return _Append(info, settings, stored, shares, inputs, pool, progress).run()


def _give_up(root: Path) -> None:
    """Take out shards that an interrupted command has moved in but not described."""
    facts = read_facts(root, verb="append")
    described = layout.read_metadata(root)
    if facts is None or _is_last_event(described, facts):
        return
    # By the notes of that command: a shard that somebody moved in meanwhile is not its own.
    for note in sorted((root / WORK_NAME / _NOTES).glob("*.shard")):
        path = root / str(open_work_file(note).header["file"])
        for file in (path, layout.documents_path(path)):
            file.unlink(missing_ok=True)


def _is_last_event(metadata: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Return whether the command these facts are of wrote its metadata."""
    events = metadata.get("appended", [])
    return len(events) > facts["num_appended"]


def _finish_cleaning_up(info: layout.DatasetInfo) -> AppendResult | None:
    """End a command that was killed after its last write, while it removed its work files."""
    facts = read_facts(info.root, verb="append")
    if facts is None or not _is_last_event(info.metadata, facts):
        return None
    remove_work(info.root)
    event = info.metadata["appended"][-1]
    numbers = [shard.path for shards in info.shards.values() for shard in shards]
    count = sum((layout.shard_number(path) or 0) >= event["first_shard"] for path in numbers)
    return AppendResult(info, event["cleaning"], event["notices"], event["tokens"], count)


def _stored_settings(info: layout.DatasetInfo, settings: AppendSettings) -> PrepareSettings:
    """Return the settings the dataset was prepared with, for other inputs and resources."""
    known: dict[str, Any] = {
        key: value
        for key, value in info.metadata.get("settings", {}).items()
        if key in PrepareSettings.__dataclass_fields__
    }
    known.setdefault("tokens_per_shard", info.metadata.get("tokens_per_shard", 10_000_000))
    known.update(
        input_files=settings.input_files,
        out_dir=info.root,
        skip_bad_inputs=settings.skip_bad_inputs,
        num_workers=settings.num_workers,
        memory=settings.memory,
        text_field=settings.text_field,
    )
    if known.get("decontaminate"):
        raise UsageError(
            "this dataset was prepared with --decontaminate, which looks at all documents at once",
            path=info.root,
            next_step="lowtide prepare all of it anew, with the new files after the old ones",
        )
    stored = build_settings(PrepareSettings, known)
    if stored.near is not None:
        raise UsageError(
            f"this dataset was prepared with --near-dedup {stored.near_dedup}, and keeps no text "
            "that new documents could be compared with",
            path=info.root,
            next_step="lowtide prepare all of it anew, with the new files after the old ones",
        )
    before = info.metadata.get("settings", {})
    models = plan_models(stored)
    models |= {name: getattr(stored, name) for name in ("language_model", "score", "step")}
    other = find_other_setting({name: before.get(name) for name in models}, models)
    if other is not None:
        raise UsageError(
            "the dataset was made with {} {}, now it is {}".format(*other),
            path=info.root,
            next_step="put the model back that it was made with",
        )
    return stored


def _find_new(
    info: layout.DatasetInfo,
    inputs: InputList,
    stored: PrepareSettings,
    reading: ReadingSettings,
    on_notice: Callable[[str], None],
) -> InputList:
    """Inputs the dataset was not made of yet, numbered after those it was."""
    if stored.dedup:
        inputs = drop_copies(inputs, reading, on_notice=on_notice)
    rows = info.metadata.get("sources", [])
    base = len(info.metadata.get("input_files", []))
    return drop_known(inputs, rows, reading, first_index=base, on_notice=on_notice)


class _Append:
    """One run of `lowtide append`, phase by phase."""

    def __init__(
        self,
        info: layout.DatasetInfo,
        settings: AppendSettings,
        stored: PrepareSettings,
        shares: Shares,
        inputs: InputList,
        pool: WorkerPool,
        progress: Progress,
    ) -> None:
        self.root = info.root
        self.metadata = info.metadata
        self.stored = stored
        self.shares = shares
        self.inputs = inputs
        self.pool = pool
        self.progress = progress
        self.reading = stored.reading(
            reader_bytes=shares.reader_bytes, budget_bytes=progress.budget_bytes
        )
        self.streams = plan_streams(inputs, self.reading)
        # Shards of this command that a kill left behind would look like ones moved in by hand.
        before = [shard for split in layout.SPLITS for shard in info.shards[split]]
        numbers = [layout.shard_number(shard.path) for shard in before]
        self.work, facts = open_work(
            info.root,
            verb="append",
            settings={
                "text_field": settings.text_field,
                "skip_bad_inputs": settings.skip_bad_inputs,
                "total_tokens": info.metadata.get("total_tokens"),
            },
            streams=self.streams,
            restart=settings.restart,
            on_notice=progress.note,
            facts={
                "num_appended": len(info.metadata.get("appended", [])),
                "first_number": 1 + max((n for n in numbers if n is not None), default=-1),
                "shards": {
                    split: [layout.shard_row(info.root, shard) for shard in info.shards[split]]
                    for split in layout.SPLITS
                },
            },
        )
        self.first_number = int(facts["first_number"])
        self.before = {
            split: [layout.shard_from_row(info.root, row) for row in facts["shards"][split]]
            for split in layout.SPLITS
        }
        self.info = info
        self.seen: list[Any] = list(info.metadata.get("seen", []))
        if self.stored.dedup and not self.seen and "cleaning" in info.metadata:
            progress.note(
                "this dataset keeps no hashes of its documents, as those of earlier versions: "
                "short lines of a document that is there already may be added"
            )

    def run(self) -> AppendResult:
        tokenizer = Tokenizer.load(self.root)
        if tokenizer.fingerprint != self.info.tokenizer_fingerprint:
            raise DataError(
                f"{layout.TOKENIZER_NAME} is not the one the ids were made with",
                path=self.info.tokenizer_path,
                next_step=f"lowtide verify {self.root}",
            )
        job = CleanJob(
            streams=self.streams,
            reading=self.reading,
            cleaning=self.stored.cleaning,
            cut=self.find_cut(),
            folder=self.work / "clean",
            collect_characters=tokenizer.kind == "char",
        )
        with noticing_changes(self.inputs, lambda: remove_work(self.root)):
            table = run_cleaning(job, self.pool, self.progress)
            require_unchanged(self.inputs, table.contents, self.reading)
        contents = table.contents
        notices = [*table.notices, *_unknown_characters(tokenizer, table)]
        removed, first_block = None, 0
        if self.stored.dedup:
            existing = self.hash_existing(tokenizer)
            table, first_block = table.after(existing), len(existing)
            removed = run_deduplication(
                table, self.work / "duplicates", self.pool, self.progress, self.shares
            )
        encode_job = EncodeJob(
            cleaning=self.stored.cleaning,
            coder=Coder(
                tokenizer,
                end_id=self.end_id(tokenizer),
            ),
            shuffle=self.stored.shuffle,
            seed=self.stored.seed,
            folder=self.work / "encoded",
        )
        run_encoding(encode_job, table, removed, self.pool, self.progress, first_block=first_block)
        unknown = len(notices) > len(table.notices)
        return self.write(
            encode_job, table, notices, contents, first_block=first_block, unknown=unknown
        )

    def find_cut(self) -> ScoreCut | None:
        """What the dataset was cut at: the best of all inputs are not known from the new ones."""
        if self.stored.keep_top is None:
            return None
        cut = read_cut(self.metadata.get("cleaning", {}).get("score"))
        self.progress.note(
            f"documents stay whose score is at least the dataset's own cut, {cut.score:.6g}"
        )
        return cut

    def end_id(self, tokenizer: Tokenizer) -> int | None:
        """What ends documents here: earlier versions knew one name for it, and wrote no other."""
        written = self.info.metadata.get("end_of_text_id")
        return tokenizer.special_tokens.get(END_OF_TEXT) if written is None else int(written)

    def shard_tag(self, contents: InputHashes) -> str:
        """A tag by content: that of the new texts, and of what they were added to."""
        before = [
            [shard.num_tokens, shard.checksum or shard.path.name]
            for split in layout.SPLITS
            for shard in self.before[split]
        ]
        return layout.shard_tag(
            self.info.tokenizer_fingerprint, before, list_contents(self.inputs, contents)
        )

    def hash_existing(self, tokenizer: Tokenizer) -> BlockTable:
        """Decode the dataset and hash its lines again; blocks that are done are not read twice.

        Whole documents are known by the hashes kept of them; of shards that somebody moved in, and
        in datasets of earlier versions, they are hashed again as well.
        """
        cleaning = replace(
            self.stored.cleaning,
            normalize=False,
            filter=False,
            rules="",
            rule_limit=(),
            mask="",
            keep_top=None,
            step="",
            language_model="",
            languages="",
            score="",
            score_label="",
        )
        stream = Stream(0, (), random_access=True, num_blocks=0)
        job = CleanJob([stream], self.reading, cleaning, self.work / "existing")
        job.folder.mkdir(parents=True, exist_ok=True)
        total = sum(shard.num_tokens for shards in self.before.values() for shard in shards)
        count = 0

        def tasks() -> Iterator[Callable[[], int]]:
            nonlocal count
            shards = _in_order(chain(*self.before.values()))
            ours = [shard for shard in shards if shard.checksum is not None]
            for group in (ours, shards[len(ours) :]):
                whole = group is not ours or not self.seen
                for texts, tokens in _iter_texts(group, self.info.dtype, tokenizer):
                    number, count = count, count + 1
                    yield (
                        lambda texts=texts, tokens=tokens, number=number, whole=whole: _hash_texts(
                            job, texts, number, tokens, whole=whole
                        )
                    )
            for rows in iter_seen(self.root, self.seen):
                number, count = count, count + 1
                yield lambda rows=rows, number=number: _hash_seen(job, rows, number)

        with self.progress.phase("read dataset", total=total, unit="tokens") as phase:
            for tokens in self.pool.run(tasks()):
                phase.advance(tokens)
            return load_block_table(replace(job, streams=[replace(stream, num_blocks=count)]))

    def write(
        self,
        encode_job: EncodeJob,
        table: BlockTable,
        notices: list[str],
        contents: InputHashes,
        *,
        first_block: int,
        unknown: bool,
    ) -> AppendResult:
        paths = [encode_job.path(path) for path in table.paths[first_block:]]
        new_files = Rows(len(self.inputs), lambda: (str(row.path) for row in self.inputs))
        first_index = len(self.metadata.get("input_files", []))
        sources = SourceCounts(len(self.inputs), first_index=first_index)
        for path in paths:
            header = open_work_file(path).header
            table.report.add(header["counts"], header["samples"])
            sources.add(header.get("sources", ()))
        split = self.metadata.get("split", {})
        job = ShardJob(
            root=self.work / "new",
            encoded=paths,
            shuffle=self.stored.shuffle,
            val_fraction=float(split.get("val_fraction", self.stored.val_fraction)),
            tokens_per_shard=self.stored.tokens_per_shard,
            vocab_size=self.info.vocab_size,
            tag=self.shard_tag(contents),
            first_number=self.first_number,
            split_mode=split.get("mode", "content"),
            range_bytes=self.shares.range_bytes,
            done_folder=self.work / _NOTES,
            first_block=first_block,
        )
        plan = plan_shards(job)
        seen = self.seen
        if self.stored.dedup and seen:
            new = table.paths[first_block:]
            # Where characters were not known, lines cannot be read from the ids either.
            seen = [*seen, write_seen(self.root, len(seen), new, paths, all_lines=unknown)]
        added = self.move_in(run_sharding(job, plan, self.pool, self.progress))
        tokens = sum(shard.num_tokens for shards in added.values() for shard in shards)
        report = table.report.as_json()
        metadata = self.metadata
        known = {
            "format_version", "total_tokens", "total_documents", "total_shards", "train_shards",
            "val_shards", "train_tokens", "val_tokens", "tokens_per_shard", "tokenization",
            "vocab_size", "dtype", "tokenizer_fingerprint", "input_files", "shards",
        }  # fmt: skip
        event = {
            "input_files": new_files,
            "first_shard": self.first_number,
            "tokens": tokens,
            "cleaning": report,
            "notices": notices,
        }
        info = layout.write_metadata(
            self.root,
            shards={name: self.before[name] + added[name] for name in layout.SPLITS},
            vocab_size=self.info.vocab_size,
            tokenizer_fingerprint=self.info.tokenizer_fingerprint,
            tokenization=metadata.get("tokenization", "unknown"),
            tokens_per_shard=self.stored.tokens_per_shard,
            input_files=_joined(metadata.get("input_files", []), new_files),
            more={
                **{key: value for key, value in metadata.items() if key not in known},
                "sources": _joined(
                    metadata.get("sources", []),
                    Rows(
                        len(self.inputs),
                        lambda: sources.iter_json(
                            iter_sources(self.inputs, self.reading, contents)
                        ),
                    ),
                ),
                **({"seen": seen} if seen else {}),
                "appended": [*metadata.get("appended", []), event],
            },
        )
        remove_work(self.root)
        return AppendResult(info, report, notices, tokens, sum(map(len, added.values())))

    def move_in(
        self, added: dict[str, list[layout.ShardInfo]]
    ) -> dict[str, list[layout.ShardInfo]]:
        """Put finished shards where they belong; until then no reader can see them."""
        moved: dict[str, list[layout.ShardInfo]] = {}
        for split, shards in added.items():
            moved[split] = []
            for shard in shards:
                path = self.root / split / shard.path.name
                layout.documents_path(shard.path).replace(layout.documents_path(path))
                shard.path.replace(path)
                moved[split].append(replace(shard, path=path))
            if shards:
                files.sync_directory(self.root / split)
        return moved


def _joined(first: Sequence[Any], second: Sequence[Any]) -> Rows:
    return Rows(len(first) + len(second), lambda: chain(first, second))


def _unknown_characters(tokenizer: Tokenizer, table: BlockTable) -> list[str]:
    """Say which characters of the new text a character tokenizer does not know."""
    if tokenizer.kind != "char" or table.characters is None:
        return []
    known = {tokenizer.token_bytes(number).decode() for number in range(tokenizer.vocab_size)}
    strange = [chr(code) for code in table.list_characters() if chr(code) not in known]
    if not strange:
        return []
    shown = " ".join(repr(character) for character in strange[:8])
    return [f"{len(strange)} characters are not in the vocabulary and became <unk>: {shown}"]


def _in_order(shards: Iterable[layout.ShardInfo]) -> list[layout.ShardInfo]:
    """Put shards as they were written, where one document may go on in the next, also from train
    to val; those moved in by hand come last."""
    return sorted(
        shards, key=lambda shard: (shard.checksum is None, layout.shard_number(shard.path) or 0)
    )


def _iter_texts(
    shards: list[layout.ShardInfo], dtype: np.dtype[Any], tokenizer: Tokenizer
) -> Iterator[tuple[list[bytes], int]]:
    """Decode documents in order, whole ones where they are not too long; no line is ever cut."""
    held = b""  # a document of which more may come
    for shard in shards:
        tokens = layout.load_shard_tokens(shard, dtype)
        ends = layout.load_document_ends(shard).astype(np.int64)
        for begin in range(0, shard.num_tokens, _DECODE_TOKENS):
            end = min(begin + _DECODE_TOKENS, shard.num_tokens)
            ids = np.array(tokens[begin:end])
            stops = ends[(ends > begin) & (ends <= end)] - begin
            if not len(ends) and tokenizer.end_of_text_id is not None:  # nobody wrote them down
                stops = np.flatnonzero(ids == tokenizer.end_of_text_id) + 1
            texts: list[bytes] = []
            start = 0
            for stop in stops.tolist():
                last = stop - 1 if ids[stop - 1] == tokenizer.end_of_text_id else stop
                texts.append(held + tokenizer.decode_bytes(ids[start:last]))
                held, start = b"", stop
            held += tokenizer.decode_bytes(ids[start:])
            if len(held) > _HELD_BYTES:
                line_end = held.rfind(b"\n") + 1 or len(held)
                texts.append(held[:line_end])
                held = held[line_end:]
            yield texts, end - begin
    if held:
        yield [held], 0


def _hash_seen(job: CleanJob, rows: bytes, number: int) -> int:
    path = job.block_path(0, number)
    if not path.exists():
        write_seen_block(path, rows)
    return 0


def _hash_texts(
    job: CleanJob, texts: list[bytes], number: int, num_tokens: int, *, whole: bool
) -> int:
    """Hash the lines of texts; with `whole` also each text as a document."""
    if not job.block_path(0, number).exists():
        if not whole:
            texts = [b"\n".join(texts)]
        data = b"".join(texts)
        ends: npt.NDArray[np.uint64] = np.cumsum(
            np.fromiter(map(len, texts), dtype=np.uint64, count=len(texts))
        ).astype(np.uint64)
        is_part = not whole and bool(data)  # a part of a document has no hash of its own
        block = TextBlock(
            stream=0,
            number=number,
            kind="rows",
            data=data,
            segments=(Segment(0, 0, 0, len(data)),),
            row_ends=ends,
            continues=is_part,
            continued=is_part,
        )
        write_block(job, block, number, keep_text=False)
    return num_tokens
