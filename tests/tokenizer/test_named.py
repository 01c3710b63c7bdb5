"""A tokenizer may be given as an object, by its name or by its path."""

import pytest

from lowtide.errors import UsageError
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.named import open_tokenizer


def test_names_and_paths_are_loaded_and_anything_else_is_refused(tmp_path):
    own = Tokenizer.from_characters("abc")
    assert open_tokenizer(own) is own
    own.save(tmp_path)
    for given in (tmp_path, str(tmp_path)):
        assert open_tokenizer(given).fingerprint == own.fingerprint
    for given in (None, 3, b"gpt2", object()):
        with pytest.raises(UsageError, match=r"tokenizer is of type \w+, expected a lowtide"):
            open_tokenizer(given)
