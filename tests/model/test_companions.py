"""Files beside weights: what transformers is told of a tokenizer that was made here."""

import pytest

from lowtide.errors import DataError
from lowtide.model.companions import _tokenizer_config, companions_dir
from lowtide.model.config import GPTConfig
from lowtide.tokenizer import Tokenizer

CONFIG = GPTConfig(vocab_size=16, context_length=24, num_layers=1, width=16, num_heads=1)


def test_what_a_tokenizer_has_is_named():
    plain = Tokenizer.from_merges([], special_tokens={})
    ended = Tokenizer.from_merges([], special_tokens={"<|endoftext|>": 256})
    characters = Tokenizer.from_characters("abc")
    named = {"plain": plain, "ended": ended, "char": characters}
    fields = {name: _tokenizer_config(one, CONFIG, None) for name, one in named.items()}
    common = {"tokenizer_class", "model_max_length", "clean_up_tokenization_spaces"}
    ends = {"eos_token", "bos_token"}
    assert set(fields["plain"]) == common
    assert set(fields["ended"]) == common | ends
    assert set(fields["char"]) == common | ends | {"unk_token"}
    assert fields["char"]["unk_token"] == "<unk>"
    assert fields["ended"]["eos_token"] == fields["ended"]["bos_token"] == "<|endoftext|>"
    assert fields["plain"]["model_max_length"] == 24
    assert fields["plain"]["clean_up_tokenization_spaces"] is False


def test_what_its_makers_say_stays(tmp_path):
    path = tmp_path / "tokenizer_config.json"
    path.write_text('{"chat_template": "x", "tokenizer_class": "Theirs"}')
    found = _tokenizer_config(Tokenizer.from_characters("abc"), CONFIG, tmp_path)
    assert found["chat_template"] == "x" and found["tokenizer_class"] != "Theirs"
    assert set(found) == {"chat_template", "tokenizer_class"}
    path.write_text("[]")
    with pytest.raises(DataError, match="does not hold an object"):
        _tokenizer_config(Tokenizer.from_characters("abc"), CONFIG, tmp_path)


def test_a_checkpoint_has_the_files_of_its_run_where_it_has_none(tmp_path):
    run, step = tmp_path / "run", tmp_path / "run/steps/step_00000010"
    step.mkdir(parents=True)
    assert companions_dir(step) == step  # neither has a tokenizer
    (run / "tokenizer.json").touch()
    assert companions_dir(step) == step  # any folder may be called steps
    (run / "config.json").touch()
    assert companions_dir(step) == companions_dir(run) == run
    assert companions_dir(step.parent) == step.parent
    (step / "tokenizer.json").touch()
    assert companions_dir(step) == step
