"""Which text of a run has no tokens yet, or no tokenizer."""

from __future__ import annotations

import pytest

from lowtide.errors import LowtideError
from lowtide.training import textneeds
from lowtide.training.settings import train_settings


@pytest.mark.parametrize(("there", "overwrite", "reads"), [
    (False, False, True), (False, True, True), (True, False, False), (True, True, True),
])  # fmt: skip
@pytest.mark.parametrize("streams", [False, True])
def test_what_a_run_has_made_is_not_made_again(tmp_path, there, overwrite, reads, streams):
    (tmp_path / "text.txt").write_text("low tide")
    made = tmp_path / "m" / "data" / ("tokenizer/tokenizer.json" if streams else "tokens.npy")
    made.parent.mkdir(parents=True)
    if there:
        made.write_text("")
    text = tmp_path / "text.txt"
    data = {"dataset_id": str(text), "vocab_size": 300} if streams else {"input_file": text}
    given = {"checkpoints_dir": tmp_path, "model_name": "m", "overwrite": overwrite}
    found = textneeds._texts_to_tokenize(train_settings(**data, **given))
    assert [source.path.name for source in found] == ["text.txt"] * reads


@pytest.mark.parametrize(
    "data",
    [
        {"dataset_id": "text.txt"},  # learned from a sample
        {"dataset_id": "text.txt", "tokenization": "gpt2"},
        {"dataset_id": "some/texts", "vocab_size": 300},  # of the hub
        {"dataset_id": "nothing*.txt", "vocab_size": 300},  # reading it will tell
        {"input_file": "ids.npy"},
        {"input_file": "none.txt"},
        {"dataset_dir": "data"},
    ],
)
def test_nothing_is_to_be_made_of_other_data(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("low tide")
    (tmp_path / "ids.npy").write_text("")
    settings = train_settings(checkpoints_dir=tmp_path, **data)
    assert list(textneeds._texts_to_tokenize(settings)) == []


@pytest.mark.parametrize("error", [OSError("gone"), LowtideError("damaged")])
def test_text_that_cannot_be_looked_at_is_told_of_by_reading_it(tmp_path, monkeypatch, error):
    def fail(*given):
        raise error

    monkeypatch.setattr(textneeds, "reader_bytes", fail)
    settings = train_settings(checkpoints_dir=tmp_path, input_file=tmp_path / "text.txt")
    assert textneeds._stages(settings, [], None) == [0]
