"""A dataset that text is appended to: its settings, and its new metadata."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset import grown
from lowtide.dataset.grown import GrownDataset, first_free_number, unknown_characters
from lowtide.dataset.tokenfiles.shards import ShardInfo
from lowtide.errors import DataError
from lowtide.tokenizer import Tokenizer


def make(metadata: dict[str, Any] | None = None, **stored: Any) -> Any:
    usual = {"dedup": True, "keep_top": None, "val_fraction": 0.1, "tokens_per_shard": 50}
    info: Any = SimpleNamespace(
        metadata=metadata or {}, root=Path("root"), tokenizer_fingerprint="f" * 16, vocab_size=300,
        tokenizer_path=Path("root/tokenizer.json"),
    )  # fmt: skip
    given: Any = SimpleNamespace(**(usual | stored))
    return GrownDataset(info, given, {"train": [], "val": []}, 7)


def test_what_an_old_dataset_does_not_say_is_what_was_usual() -> None:
    old = make()
    assert (old.seen, old.keeps_hashes, old.first_input, old.num_appended) == ([], False, 0, 0)
    assert (old.split_mode, old.val_fraction, old.cut) == ("content", 0.1, None)
    said = make(
        {"seen": [1], "input_files": ["a", "b"], "appended": [1, 2, 3],
         "split": {"mode": "tail", "val_fraction": 0}},
    )  # fmt: skip
    assert (said.seen, said.keeps_hashes, said.first_input, said.num_appended) == ([1], True, 2, 3)
    assert (said.split_mode, said.val_fraction) == ("tail", 0.0)
    assert make({"seen": [1]}, dedup=False).keeps_hashes is False


@pytest.mark.parametrize(("written", "special", "end"), [(5, {}, 5), (0, {}, 0), (None, {}, None)])
def test_the_end_of_documents_is_as_it_was_written(written: Any, special: Any, end: Any) -> None:
    dataset = make({"end_of_text_id": written})
    dataset.__dict__["tokenizer"] = SimpleNamespace(special_tokens={"<|endoftext|>": 9})
    assert dataset.end_id == (9 if written is None else end)


def test_the_tokenizer_is_the_one_of_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = SimpleNamespace(
        fingerprint="f" * 16, vocab_size=make().info.vocab_size, special_tokens={"<end>": 3}
    )
    monkeypatch.setattr(grown.Tokenizer, "load", lambda root: loaded)
    assert make().tokenizer is loaded
    assert make({"end_of_text_id": 3}).tokenizer is loaded
    with pytest.raises(DataError, match="end_of_text_id is 2, no special token's"):
        make({"end_of_text_id": 2}).tokenizer  # noqa: B018
    loaded.vocab_size += 1
    with pytest.raises(DataError, match=r"vocab_size is .*, tokenizer\.json has"):
        make().tokenizer  # noqa: B018
    loaded.fingerprint = "0" * 16
    with pytest.raises(DataError, match="is not the one the ids were made with"):
        make().tokenizer  # noqa: B018


def test_what_people_should_know_before_text_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grown, "read_cut", lambda row: SimpleNamespace(score=row))
    assert make().notices() == []
    assert make({"cleaning": {}, "seen": [1]}).notices() == []
    assert make({"cleaning": {}}, dedup=False).notices() == []
    (notice,) = make({"cleaning": {}}).notices()
    assert notice.startswith("this dataset keeps no hashes of its documents")
    cut = make({"cleaning": {"score": 0.123456789}, "seen": [1]}, keep_top=0.5)
    assert cut.notices() == [
        "documents stay whose score is at least the dataset's own cut, 0.123457"
    ]


def test_numbers_go_on_behind_the_last_shard() -> None:
    def info(*names: str) -> Any:
        shards = [SimpleNamespace(path=Path(name)) for name in names]
        return SimpleNamespace(shards={"train": shards[:1], "val": shards[1:]})

    assert first_free_number(info()) == 0
    assert first_free_number(info("mine.bin")) == 0
    assert first_free_number(info("shard_00000.bin")) == 1
    assert first_free_number(info("shard_00002.bin", "shard_00009.bin", "mine.bin")) == 10


def test_characters_that_are_not_in_the_vocabulary_are_named() -> None:
    tokenizer = Tokenizer.from_characters("abc")
    assert unknown_characters(tokenizer, [ord("a"), ord("c")]) == []
    (one,) = unknown_characters(tokenizer, [ord("a"), ord("x"), 10])
    assert one == "2 characters are not in the vocabulary and became <unk>: 'x' '\\n'"
    (many,) = unknown_characters(tokenizer, list(range(ord("d"), ord("d") + 10)))
    assert many.startswith("10 characters") and many.endswith(" 'j' 'k'")
    other: Any = SimpleNamespace(kind="bpe")
    assert unknown_characters(other, [ord("x")]) == []


def test_shards_are_moved_ends_first_and_only_once(tmp_path: Path) -> None:
    dataset = make()
    dataset.info.root = tmp_path / "data"
    new = tmp_path / "new"
    for folder in (new, tmp_path / "data" / "train", tmp_path / "data" / "val"):
        folder.mkdir(parents=True)
    for suffix in ("bin", "docs"):
        (new / f"s.{suffix}").write_text(suffix)
    shard = ShardInfo(new / "s.bin", 1, 1, 0, 0, None)
    for _ in range(2):  # repeated after a kill
        moved = dataset.move_in({"train": [shard], "val": []})
        assert moved["val"] == []
        assert [one.path for one in moved["train"]] == [tmp_path / "data" / "train" / "s.bin"]
        assert (tmp_path / "data" / "train" / "s.docs").read_text() == "docs"
        assert list(new.iterdir()) == []
    (tmp_path / "data" / "train" / "s.bin").unlink()
    with pytest.raises(FileNotFoundError):
        dataset.move_in({"train": [shard]})


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EACCES])
def test_a_file_of_another_disk_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "a").write_text("text")
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if self.name == "a":
            raise OSError(number, "no")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    if number == errno.EXDEV:
        grown._move(tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "b").read_text() == "text"
        return
    with pytest.raises(OSError, match="no"):
        grown._move(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("seen", [None, {"file": "new"}])
def test_metadata_says_what_was_there_and_what_was_added(
    monkeypatch: pytest.MonkeyPatch, seen: Any
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(grown.layout, "write_metadata", lambda *given, **more: written.append(more))
    monkeypatch.setattr(grown.layout, "load_dataset_info", lambda root: "info")
    monkeypatch.setattr(
        grown, "iter_sources",
        lambda inputs, reading, contents: [(str(one.path), {}) for one in inputs],
    )  # fmt: skip
    before = {
        "input_files": ["old"], "sources": [{"file": "old"}], "tokenization": "gpt2",
        "seen": [{"file": "first"}], "appended": ["earlier"], "notes": "kept", "vocab_size": 5,
    }  # fmt: skip
    dataset = make(before)
    path = Path("elsewhere/a.bin")
    old = ShardInfo(path, 1, 0, 0, 0, None)
    dataset.shards["train"].append(old)
    shard = ShardInfo(path, 4, 0, 0, 0, None)
    added = grown.Added(
        inputs=[SimpleNamespace(path=Path("new"))], reading=None, contents=None,
        sources=SimpleNamespace(iter_json=lambda rows: [{"file": name} for name, _ in rows]),
        shards={"train": [shard], "val": [shard]}, report={"r": 1}, notices=["n"], seen=seen,
        logs={"near": 2},
    )  # type: ignore[arg-type] # fmt: skip
    assert dataset.write(added) == "info"
    (more,) = written
    extra = more.pop("more")
    (train, new), (val,) = more.pop("shards").values()
    assert (train.num_tokens, new.num_tokens, val.num_tokens) == (1, 4, 4)
    assert train.path == new.path == dataset.root / "train/a.bin"
    assert val.path == dataset.root / "val/a.bin"
    assert list(more.pop("input_files")) == ["old", "new"]
    assert more == {
        "vocab_size": 300, "tokenizer_fingerprint": "f" * 16, "tokenization": "gpt2",
        "tokens_per_shard": 50,
    }  # fmt: skip
    assert list(extra.pop("sources")) == [{"file": "old"}, {"file": "new"}]
    earlier, event = extra.pop("appended")
    assert earlier == "earlier"
    assert list(event.pop("input_files")) == ["new"]
    assert event == {
        "first_shard": 7, "tokens": 8, "cleaning": {"r": 1}, "notices": ["n"], "near": 2,
    }  # fmt: skip
    assert extra == {
        "notes": "kept", "seen": [{"file": "first"}, *([seen] if seen else [])]
    }  # fmt: skip
