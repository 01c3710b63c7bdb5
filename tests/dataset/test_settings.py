"""Settings of the dataset stage: defaults, limits, the kind of a file if none is given."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus.reading import BLOCK_BYTES, ReadingSettings
from lowtide.corpus.settings import CleaningSettings
from lowtide.dataset.settings import (
    AppendSettings,
    ConvertSettings,
    InspectSettings,
    PrepareSettings,
    PretokenizeSettings,
    VerifySettings,
)
from lowtide.errors import UsageError
from lowtide.flatsettings import setting_fields
from lowtide.settings import build_settings

PREPARE = {
    "rules": "",
    "rule_limit": (),
    "mask": "",
    "language_model": "",
    "languages": "",
    "min_language_score": 0.65,
    "score": "",
    "score_label": "",
    "keep_above": 0.5,
    "step": "",
    "tokenization": "gpt2",
    "tokens_per_shard": 10_000_000,
    "val_fraction": 0.1,
    "document_separator": "<|endoftext|>",
    "text_field": "text",
    "encoding": "utf-8",
    "skip_bad_inputs": False,
    "normalize": True,
    "lowercase": False,
    "filter": True,
    "min_line_chars": 0,
    "max_line_chars": 100_000,
    "min_line_words": 0,
    "min_document_chars": 20,
    "max_document_chars": 0,
    "min_document_words": 3,
    "max_repetition": 0.8,
    "dedup": True,
    "min_dedup_chars": 20,
    "near_dedup": 0.0,
    "near_dedup_ngram": 5,
    "decontaminate": (),
    "decontaminate_by": "drop",
    "shuffle": True,
    "seed": 0,
    "dry_run": False,
    "restart": False,
    "engine": "threads",
}
PRETOKENIZE = {
    "tokenization": "gpt2",
    "text_field": "text",
    "encoding": "utf-8",
    "skip_bad_inputs": False,
}
APPEND = {"text_field": "text", "skip_bad_inputs": False, "restart": False, "engine": "threads"}
CONVERT = {
    "to": "lowtide",
    "tokenizer": "gpt2",
    "val_fraction": 0.1,
    "tokens_per_shard": 10_000_000,
}
INSPECT = {"split": "train", "start": 0, "tokens": 100, "show_ids": False, "test_loading": False}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (PrepareSettings, PREPARE),
        (PretokenizeSettings, PRETOKENIZE),
        (AppendSettings, APPEND),
        (VerifySettings, {}),
        (ConvertSettings, CONVERT),
        (InspectSettings, INSPECT),
    ],
)
def test_defaults_are_those_of_the_help(settings: Any, expected: dict[str, Any]) -> None:
    fields = setting_fields(settings).values()
    given = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    assert {name: value for name, value in given.items() if value is not None} == expected


def prepare(**options: Any) -> PrepareSettings:
    return PrepareSettings(input_files="a.txt", out_dir="out", **options)  # pyright: ignore


LIMITS = [
    ({"val_fraction": 0.0}, True),
    ({"val_fraction": 0.999}, True),
    ({"val_fraction": 1.0}, False),
    ({"val_fraction": -0.001}, False),
    ({"tokens_per_shard": 2}, True),
    ({"tokens_per_shard": 1}, False),
    ({"num_workers": 1}, True),
    ({"num_workers": 4096}, True),
    ({"num_workers": 0}, False),
    ({"num_workers": 4097}, False),
    ({"max_repetition": 0.001}, True),
    ({"max_repetition": 1.0}, True),
    ({"max_repetition": 0.0}, False),
    ({"max_repetition": 1.001}, False),
    ({"document_separator": "x" * 1024}, True),
    ({"document_separator": "\udcff"}, False),
    ({"document_separator": "\ud7ff\ue000"}, True),
    ({"document_separator": "x" * 1025}, False),
    *(
        ({name: value}, value == 0)
        for name in (
            "min_line_chars",
            "max_line_chars",
            "min_line_words",
            "min_document_chars",
            "max_document_chars",
            "min_document_words",
            "min_dedup_chars",
            "seed",
        )
        for value in (0, -1)
    ),
]


@pytest.mark.parametrize(("options", "fine"), LIMITS)
def test_limits_are_where_they_are_said_to_be(options: dict[str, Any], fine: bool) -> None:
    if fine:
        prepare(**options)
        return
    with pytest.raises(UsageError):
        prepare(**options)


def test_texts_stand_for_paths_and_escapes_for_blanks() -> None:
    settings = prepare(document_separator="\\n\\t")
    assert settings.input_files == ("a.txt",)
    assert settings.out_dir == Path("out")
    assert settings.document_separator == "\n\t"
    many = PrepareSettings(input_files=["a", Path("b")], out_dir="o")  # pyright: ignore
    assert many.input_files == ("a", "b")


def test_cleaning_and_reading_take_their_parts() -> None:
    settings = prepare(
        lowercase=True, min_line_chars=7, encoding="latin-1", text_field="body",
        skip_bad_inputs=True, document_separator="--",
    )  # fmt: skip
    assert settings.cleaning == CleaningSettings(lowercase=True, min_line_chars=7)
    reading = settings.reading(reader_bytes=12345, budget_bytes=99)
    assert reading == ReadingSettings(
        separator=b"--",
        text_field="body",
        encoding="latin-1",
        block_bytes=BLOCK_BYTES,
        reader_bytes=12345,
        budget_bytes=99,
        skip_bad=True,
    )
    assert settings.reading().reader_bytes == ReadingSettings.reader_bytes


def test_other_verbs_make_paths_and_check_what_they_take() -> None:
    one = PretokenizeSettings(file="a.txt", out_path="b.npy")  # pyright: ignore
    assert (one.file, one.out_path) == ((Path("a.txt"),), Path("b.npy"))
    with pytest.raises(UsageError, match="no file is named"):
        PretokenizeSettings(file=())
    appended = AppendSettings(dataset_dir="d", input_files="a")  # pyright: ignore
    assert (appended.dataset_dir, appended.input_files) == (Path("d"), ("a",))
    assert VerifySettings(dataset_dir="d").dataset_dir == Path("d")  # pyright: ignore
    assert InspectSettings(dataset_dir="d", tokens=0).dataset_dir == Path("d")  # pyright: ignore
    with pytest.raises(UsageError, match="--tokens -1 is negative"):
        InspectSettings(dataset_dir=Path("d"), tokens=-1)
    for verb in (
        lambda: PretokenizeSettings(file=(Path("a"),), num_workers=0),
        lambda: AppendSettings(dataset_dir=Path("d"), input_files=("a",), num_workers=0),
        lambda: VerifySettings(dataset_dir=Path("d"), num_workers=0),
    ):
        with pytest.raises(UsageError, match="--processes 0 must be at least 1, and 4096 at most"):
            verb()


@pytest.mark.parametrize(
    ("options", "fine"),
    [
        ({"tokens_per_shard": 2}, True),
        ({"tokens_per_shard": 1}, False),
        ({"val_fraction": 0.0}, True),
        ({"val_fraction": 1.0}, False),
        ({"val_fraction": -0.1}, False),
    ],
)
def test_limits_of_converting(options: dict[str, Any], fine: bool) -> None:
    if fine:
        made = ConvertSettings(in_path="a", out_path="b", **options)  # pyright: ignore
        assert (made.in_path, made.out_path) == (Path("a"), Path("b"))
        return
    with pytest.raises(UsageError):
        ConvertSettings(in_path=Path("a"), out_path=Path("b"), **options)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.npy", b"", "npy"),
        ("a.idx", b"", "megatron"),
        ("a.bin", (20240520).to_bytes(4, "little"), "llmc"),
        ("a.bin", (20240801).to_bytes(4, "little"), "llmc"),
        ("a.bin", (20240521).to_bytes(4, "little"), "nanogpt"),
        ("a.bin", b"", "nanogpt"),
        ("dataset_metadata.json", b'{"format_version": 1}', "lowtide"),
        ("dataset_metadata.json", b"{}", "mypt"),
    ],
)
def test_the_kind_of_a_source_is_guessed(
    tmp_path: Path, name: str, content: bytes, kind: str
) -> None:
    (tmp_path / name).write_bytes(content)
    folder = ConvertSettings(in_path=tmp_path, out_path=Path("out"))
    assert folder.source_kind == kind
    if not name.endswith(".json"):
        alone = ConvertSettings(in_path=tmp_path / name, out_path=Path("out"))
        assert alone.source_kind == kind
    named = ConvertSettings(in_path=tmp_path, out_path=Path("out"), source_kind="nanogpt")
    assert named.source_kind == "nanogpt"


def test_the_kind_of_what_is_not_there_or_has_an_index_beside_it(tmp_path: Path) -> None:
    missing = ConvertSettings(in_path=tmp_path / "none.npy", out_path=Path("out"))
    assert missing.source_kind == "npy"
    nothing = ConvertSettings(in_path=tmp_path / "none", out_path=Path("out"))
    assert nothing.source_kind == "nanogpt"
    (tmp_path / "b.bin").write_bytes(b"")
    (tmp_path / "b.idx").write_bytes(b"")
    indexed = ConvertSettings(in_path=tmp_path / "b.bin", out_path=Path("out"))
    assert indexed.source_kind == "megatron"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out_dir": "s3://bucket/out"}, "is an address, and --engine threads writes to a disk"),
        ({"out_dir": "s3://bucket/out", "dry_run": True}, None),
        ({"out_dir": "s3://bucket/out", "engine": "files", "work_dir": "s3://bucket/work"}, None),
        ({"out_dir": "s3://bucket", "engine": "files"}, "s3://bucket is a whole bucket"),
        ({"engine": "files", "work_dir": "s3://bucket"}, "s3://bucket is a whole bucket"),
        ({"engine": "files", "dry_run": True}, "--dry-run is for --engine threads"),
        ({"engine": "ray", "dry_run": True}, "--dry-run is for --engine threads"),
        ({"dry_run": True}, None),
        ({"engine": "files"}, None),
        ({}, None),
    ],
)
def test_engines_and_the_places_they_write_to(options: dict[str, Any], message: str | None) -> None:
    given = {"input_files": ["a.txt"], "out_dir": "out", **options}
    if message is None:
        build_settings(PrepareSettings, given)
        return
    with pytest.raises(UsageError) as caught:
        build_settings(PrepareSettings, given)
    assert message in caught.value.message
