"""A text file's tokens are made once, the same as pretokenize's, and found again."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.errors import DataError, UsageError
from lowtide.loader.texts import FileTexts, Text
from lowtide.tokenizer import Tokenizer
from lowtide.training import texttokens
from lowtide.training.settings import train_settings
from lowtide.training.texttokens import count_vocabulary, find_text_tokens

TEXT = "Ebbe und Flut.<|endoftext|>\r\nZwei Tage, three days; 潮が引く。\n" * 50


@pytest.fixture
def notes():
    return []


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "text.txt").write_bytes(TEXT.encode())

    def make(**options):
        options = {"input_file": tmp_path / "text.txt", "tokenization": "char", **options}
        return train_settings(checkpoints_dir=tmp_path, **options)

    return make


@pytest.mark.parametrize("options", [{}, {"tokenization": "gpt2"}, {"tokenization": None,
                                     "vocab_size": 300}])  # fmt: skip
def test_ids_are_those_of_pretokenize_and_made_once(
    settings, notes, tmp_path, monkeypatch, options
):
    chosen = settings(**options)
    path = find_text_tokens(chosen, notes.append, None)
    assert path == tmp_path / "model/data/tokens.npy"
    expected = pretokenize_file(
        file=chosen.data.input_file, out_path=tmp_path / "e.npy", tokenization=str(path.parent)
    )
    assert np.array_equal(np.load(path), np.load(expected.path))
    assert any("tokenized" in note for note in notes)
    monkeypatch.setattr(texttokens, "pretokenize_file", None)
    monkeypatch.setattr(texttokens, "train_tokenizer", None)
    assert find_text_tokens(chosen, notes.append, None) == path


def test_a_sample_has_no_long_stretch_without_a_place_to_cut(settings, notes, tmp_path):
    """What is learned from is held at many times its size: a stretch of it takes little."""
    words = b"ordinary words of a text\n" * 200_000
    (tmp_path / "stream.txt").write_bytes(words + b"a" * (7 << 20) + b"\nthe end")
    chosen = settings(input_file=None, dataset_id=str(tmp_path / "stream.txt"), tokenization=None)
    found = FileTexts([chosen.data.dataset_id])
    texttokens._write_head(tmp_path / "head.txt", found, None)
    sample = (tmp_path / "head.txt").read_bytes()
    assert sample.replace(b"<|endoftext|>", b"") == (tmp_path / "stream.txt").read_bytes()
    parts = sample.split(b"<|endoftext|>")
    assert len(parts) == 5 and parts[0].startswith(words)  # ordinary text stays as it is
    stretches = [len(part) for part in parts[1:-1]]
    assert max(stretches) <= texttokens._STRETCH_BYTES + texttokens._LOOK_BYTES
    tokenizer = texttokens.find_stream_tokenizer(chosen, notes.append, None)
    assert max(map(len, tokenizer.vocabulary.values())) <= 1024


def test_another_text_or_tokenizer_is_tokenized_anew(settings, notes, tmp_path):
    first = np.load(find_text_tokens(settings(), notes.append, None))
    (tmp_path / "text.txt").write_text("new text, the same file")
    second = np.load(find_text_tokens(settings(), notes.append, None))
    assert len(second) == len("new text, the same file") != len(first)
    third = np.load(find_text_tokens(settings(tokenization="gpt2"), notes.append, None))
    assert len(third) < len(second)


def test_a_run_without_a_checkpoint_may_begin_with_another_vocabulary(settings, notes, tmp_path):
    """A first attempt that failed before its first checkpoint leaves nothing that binds."""
    (tmp_path / "text.txt").write_text(" ".join(f"{i * i:x}" for i in range(60_000)))
    options = {"tokenization": None, "target_params": 1_000_000}
    find_text_tokens(settings(**options, vocab_size=300), notes.append, None)
    folder = tmp_path / "model/data"
    find_text_tokens(settings(**options, vocab_size=290), notes.append, None)
    assert Tokenizer.load(folder).vocab_size == 290
    find_text_tokens(settings(**options), notes.append, None)
    first = Tokenizer.load(folder).vocab_size
    smaller = settings(tokenization=None, target_params=100_000)
    find_text_tokens(smaller, notes.append, None)
    assert Tokenizer.load(folder).vocab_size < first


@pytest.fixture
def begin(settings, notes, tmp_path):
    """Begins a run, as far as it has to do with its text."""

    def make(**options):
        path = find_text_tokens(settings(**options), notes.append, None)
        (tmp_path / "model/steps/step_00000001").mkdir(parents=True)
        Tokenizer.load(path.parent).save(tmp_path / "model")
        return path

    return make


OPTIONS = [{}, {"tokenization": None}, {"tokenization": "gpt2"}]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_run_goes_on_with_its_text_wherever_it_is(settings, notes, begin, tmp_path, options):
    path = begin(**options)
    before = path.read_bytes()
    moved = tmp_path / "moved.txt"
    (tmp_path / "text.txt").rename(moved)
    here = settings(**options, input_file=moved)
    np.save(tmp_path / "moved.npy", np.zeros(4, np.uint16))  # made since, and not the run's
    assert find_text_tokens(here, notes.append, None) == path
    assert path.read_bytes() == before

    path.unlink()  # made anew with the run's own tokenizer
    (tmp_path / "moved.npy").unlink()
    assert find_text_tokens(here, notes.append, None) == path
    assert path.read_bytes() == before


@pytest.mark.parametrize("options", OPTIONS)
def test_another_text_is_refused_before_that_of_a_run_is_gone(
    settings, notes, begin, tmp_path, options
):
    path = begin(**options)
    before = path.read_bytes()
    other = tmp_path / "other.txt"
    other.write_text("Other text.")
    with pytest.raises(UsageError, match="is another text than the one that this run began with"):
        find_text_tokens(settings(**options, input_file=other), notes.append, None)
    with pytest.raises(DataError, match="input file not found"):
        find_text_tokens(settings(**options, input_file=tmp_path / "no.txt"), notes.append, None)
    assert path.read_bytes() == before
    assert find_text_tokens(settings(**options), notes.append, None) == path


@pytest.fixture
def rows(tmp_path):
    """A file of rows with two texts each."""
    path = tmp_path / "rows.jsonl"
    row = {"text": "Low tide, high tide.", "notes": "Ebbe und Flut, ümlaut"}
    path.write_text(f"{json.dumps(row)}\n" * 40)
    return path


@pytest.mark.parametrize("options", OPTIONS)
def test_tokens_are_those_of_the_text_field(settings, notes, rows, options):
    decoded = []
    for field in ("text", "notes", "text"):  # a first attempt may have read another one
        chosen = settings(**options, input_file=rows, text_field=field)
        path = find_text_tokens(chosen, notes.append, None)
        decoded.append(Tokenizer.load(path.parent).decode(np.load(path)[:200]))
    assert decoded[0] == decoded[2] != decoded[1]
    assert "Low tide" in decoded[0] and "Ebbe und Flut, ümlaut" in decoded[1]


def test_an_npy_beside_rows_is_used_for_its_field_only(settings, notes, rows):
    made = pretokenize_file(file=rows, text_field="notes")
    options = {"input_file": rows, "tokenization": None}
    chosen = settings(**options, text_field="notes")
    assert find_text_tokens(chosen, notes.append, None) == made.path
    assert find_text_tokens(settings(**options), notes.append, None) != made.path
    assert "it was made of the field notes, --text-field is text" in "".join(notes)


def test_a_run_that_streams_keeps_its_tokenizer(settings, notes, tmp_path):
    (tmp_path / "other.txt").write_text("Other text, of other words. " * 50)
    given = {"input_file": None, "tokenization": None}
    chosen = settings(**given, dataset_id=str(tmp_path / "text.txt"))
    first = texttokens.find_stream_tokenizer(chosen, notes.append, None)
    (tmp_path / "model/steps/step_00000001").mkdir(parents=True)
    first.save(tmp_path / "model")
    other = settings(**given, dataset_id=str(tmp_path / "other.txt"))
    found = texttokens.find_stream_tokenizer(other, notes.append, None)
    assert found.fingerprint == first.fingerprint


def test_another_number_of_examples_is_learned_from_anew(settings, notes, tmp_path):
    text = "".join(f"{'abc'[i % 3] * 5} words {i}<|endoftext|>" for i in range(200))
    (tmp_path / "text.txt").write_text(text)
    given = {"input_file": None, "tokenization": None, "dataset_id": str(tmp_path / "text.txt")}
    few = texttokens.find_stream_tokenizer(settings(**given, max_examples=1), notes.append, None)
    found = texttokens.find_stream_tokenizer(settings(**given), notes.append, None)
    assert found.fingerprint != few.fingerprint


def test_an_empty_stream_is_named(settings, notes, tmp_path):
    (tmp_path / "none.txt").touch()
    given = {"input_file": None, "tokenization": None, "dataset_id": str(tmp_path / "none.txt")}
    with pytest.raises(DataError, match="there is no text to learn a tokenizer from") as caught:
        texttokens.find_stream_tokenizer(settings(**given), notes.append, None)
    assert caught.value.path == given["dataset_id"]


def test_the_base_models_tokenizer_is_taken_where_none_is_named(settings, notes, tmp_path):
    known = Tokenizer.from_characters(sorted(set(TEXT) | {"β"}))
    path = find_text_tokens(settings(tokenization=None), notes.append, known)
    assert Tokenizer.load(path.parent).fingerprint == known.fingerprint


def test_an_npy_beside_the_text_is_found_and_a_missing_text_told(settings, notes, tmp_path):
    with pytest.raises(DataError, match="input file not found"):
        find_text_tokens(settings(input_file=tmp_path / "no.txt"), notes.append, None)
    with pytest.raises(DataError, match="this is a folder, --input-file takes one file"):
        find_text_tokens(settings(input_file=tmp_path), notes.append, None)
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match="this is a pipe or a device"):
        find_text_tokens(settings(input_file=tmp_path / "pipe.txt"), notes.append, None)
    np.save(tmp_path / "text.npy", np.zeros(4, np.uint16))
    assert find_text_tokens(settings(), notes.append, None) == tmp_path / "text.npy"


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_folder_is_told_from_a_file(settings, notes, name):
    with pytest.raises(DataError, match="this is a folder, --input-file takes one file"):
        find_text_tokens(settings(input_file=name), notes.append, None)


def test_an_npy_is_its_own_tokens(settings, notes, tmp_path):
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(9, dtype=np.uint16))
    assert find_text_tokens(settings(input_file=path), notes.append, None) == path


def test_a_vocabulary_of_characters_is_counted_without_making_it(settings, tmp_path, notes):
    expected = Tokenizer.load(find_text_tokens(settings(), notes.append, None).parent).vocab_size
    assert count_vocabulary(settings().data, None) == expected
    assert not list(tmp_path.glob("*.npy"))


def made(**changes):
    fields = {"source": None, "vocab_size": 300, "tokenization": "gpt2", "settings": {}}
    return SimpleNamespace(**{**fields, "tokenizer_fingerprint": "g", **changes})


@pytest.mark.parametrize(
    ("options", "of", "known", "reason"),
    [
        ({}, None, None, None),  # of another program
        ({"vocab_size": 300}, made(), None, None),
        ({"vocab_size": 301}, made(), None, "it has a vocabulary of 300, --vocab-size is 301"),
        ({"tokenization": "gpt2"}, made(), None, None),
        ({"tokenization": "char"}, made(), None,
         "it was made with tokenizer gpt2, --tokenization is char"),
        ({"tokenization": "gpt2"}, made(tokenization="char"), None,
         "it was made with tokenizer char, --tokenization is gpt2"),
        ({"tokenization": "mine"}, made(), None,
         "it was made with tokenizer gpt2, not with loaded mine"),
        ({"tokenization": "mine"}, made(tokenizer_fingerprint="f"), None, None),
        ({}, made(), None, None),
        ({}, made(), SimpleNamespace(name="base", fingerprint="g"), None),
        ({}, made(), SimpleNamespace(name="base", fingerprint="h"),
         "it was made with tokenizer gpt2, not with base"),
        ({}, made(tokenization="char"), SimpleNamespace(name="base", fingerprint="g"), None),
    ],
)  # fmt: skip
def test_why_ids_beside_a_text_do_not_stand_for_it(
    settings, tmp_path, monkeypatch, options, of, known, reason
):
    def load(name):
        return SimpleNamespace(name=f"loaded {name}", fingerprint="f")

    monkeypatch.setattr(texttokens, "Tokenizer", SimpleNamespace(load=load))
    monkeypatch.setattr(texttokens, "describe_source_change", lambda source, path: None)
    data = settings(**{"tokenization": None, **options}).data
    assert texttokens._why_not_beside(data, tmp_path / "text.txt", of, known) == reason
    if of is not None:
        monkeypatch.setattr(texttokens, "describe_source_change", lambda source, path: "changed")
        assert texttokens._why_not_beside(data, tmp_path / "text.txt", of, known) == "changed"
        assert texttokens._why_not_beside(data, tmp_path / "no.txt", of, known) == reason


@pytest.mark.parametrize(
    ("options", "known", "found"),
    [
        ({"tokenization": "gpt2"}, "base", "loaded gpt2"),
        ({}, "base", "base"),
        ({"vocab_size": 300}, "base", "all of text.txt"),
        ({"vocab_size": 300}, None, "all of text.txt"),
        ({}, None, "head of FileTexts"),
        ({"dataset_id": "some/texts", "vocab_size": 300}, None, "head of HubTexts"),
    ],
)
def test_where_the_tokenizer_of_a_stream_comes_from(
    settings, tmp_path, monkeypatch, options, known, found
):
    class HubTexts:
        def __init__(self, name, *, split, text_field):
            assert (name, split, text_field) == ("some/texts", "train", "text")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(texttokens, "HubTexts", HubTexts)
    load = SimpleNamespace(load=lambda name: f"loaded {name}")
    monkeypatch.setattr(texttokens, "Tokenizer", load)
    monkeypatch.setattr(texttokens, "learn_tokenizer", lambda _, name, note: f"all of {name}")
    monkeypatch.setattr(
        texttokens, "learn_from_head", lambda _, texts, note: f"head of {type(texts).__name__}"
    )
    given = {"input_file": None, "dataset_id": "text.txt", "tokenization": None, **options}
    assert texttokens.find_stream_tokenizer(settings(**given), print, known) == found


@pytest.mark.parametrize(("most", "count"), [(None, 3), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_first_texts_are_counted_by_their_ends(tmp_path, most, count):
    parts = ((b"one", True), (b"two begins ", False), (b"and ends", True), (b"three", True))
    texts = [Text(data, None, ends_document=ends) for data, ends in parts]
    source = SimpleNamespace(iter_texts=lambda seed: iter(texts))
    assert texttokens._write_head(tmp_path / "head.txt", source, most) == count
    ends = b"<|endoftext|>"
    written = [b"one", b"two begins and ends", b"three"][:count]
    assert (tmp_path / "head.txt").read_bytes() == b"".join(part + ends for part in written)
