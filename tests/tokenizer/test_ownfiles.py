"""The same command given again looks at all files of a learned tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide import train_tokenizer
from lowtide.errors import DataError
from lowtide.textverbs import run_train_tokenizer
from lowtide.tokenizer.ownfiles import require_own_files
from lowtide.tokenizer.settings import TokenizerTrainingSettings


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_a_damaged_tokenizer_is_not_finished(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the tide is low, the water leaves the sand " * 9)
    given = {"input": [tmp_path / "a.txt"], "kind": kind, "num_workers": 1}
    given |= {"vocab_size": 270} if kind == "bpe" else {}

    def run() -> bool:
        return train_tokenizer(**given, out_dir=tmp_path / "tok").was_there

    run()
    names = [path for path in (tmp_path / "tok").iterdir() if path.suffix in (".json", ".txt")]
    assert len(names) == (4 if kind == "bpe" else 2)
    for path in names:
        if path.name == "training.json":
            continue
        whole = path.read_bytes()
        other = whole.replace(b'"w"', b'"\xc4\x91"').replace(b"t h", b"t i")
        for damaged in (whole[: len(whole) // 2], other, None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            if damaged is None and path.name == "tokenizer.json":
                assert not run()  # as after a kill: it is the last file to be written
                continue
            with pytest.raises(DataError):
                run()
        path.write_bytes(whole)
        assert run()


@pytest.mark.parametrize("counts", [None, 3, {}, {"bytes": "many"}])
def test_a_damaged_record_is_named(counts: object, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the tide is low")
    settings = TokenizerTrainingSettings(
        input=(tmp_path / "a.txt",), kind="char", num_workers=1, out_dir=tmp_path / "tok"
    )
    run_train_tokenizer(settings)
    path = tmp_path / "tok" / "training.json"
    record = {**json.loads(path.read_text()), "counts": counts}
    if counts is None:
        del record["counts"]
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"training\.json is damaged"):
        run_train_tokenizer(settings)


def test_a_tokenizer_of_another_fingerprint_is_not_the_learned_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the tide is low, the water leaves the sand " * 9)
    trained = train_tokenizer(input=[tmp_path / "a.txt"], vocab_size=270, out_dir=tmp_path / "tok")
    tokenizer, record = trained.tokenizer, trained.record
    require_own_files(tokenizer, tmp_path / "tok", record)
    require_own_files(tokenizer, tmp_path / "tok", {})  # as earlier versions wrote it
    with pytest.raises(DataError) as caught:
        require_own_files(tokenizer, tmp_path / "tok", {"fingerprint": "0" * 32})
    assert caught.value.message == (
        "tokenizer.json is missing, damaged, or not the one that was learned here"
    )
    assert caught.value.path == tmp_path / "tok" / "tokenizer.json"
    (tmp_path / "tok" / "vocab.json").unlink()
    with pytest.raises(DataError, match=r"vocab\.json is missing, damaged"):
        require_own_files(tokenizer, tmp_path / "tok", record)
