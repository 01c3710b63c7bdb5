"""What stands in a tokenizer.json beside its vocabulary."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from lowtide.model.templates import begin_token, read_sections

BEGIN = {"SpecialToken": {"id": "<s>", "type_id": 0}}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
IDS = {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}
TEMPLATE = {"type": "TemplateProcessing", "single": [BEGIN, TEXT], "special_tokens": IDS}
OTHER = {"type": "ByteLevel", "single": [BEGIN, TEXT], "special_tokens": IDS}


@pytest.mark.parametrize(
    ("section", "found"),
    [
        (TEMPLATE, 7),
        ({"type": "Sequence", "processors": [OTHER, TEMPLATE]}, 7),
        ({"type": "Sequence", "processors": [OTHER]}, None),
        ({**TEMPLATE, "single": [TEXT, BEGIN]}, None),  # behind the text, as BERT's
        ({**TEMPLATE, "single": []}, None),
        ({**TEMPLATE, "special_tokens": {}}, None),
        ({**TEMPLATE, "special_tokens": {"<s>": {"ids": []}}}, None),
        (OTHER, None),
        (None, None),
        ("TemplateProcessing", None),
    ],
)
def test_the_token_before_every_text(section: Any, found: int | None) -> None:
    assert begin_token({"post_processor": section}) == found


def test_a_tokenizer_that_keeps_its_file_is_read_from_it(tmp_path):
    source = zstandard.ZstdCompressor().compress(b'{"post_processor": "of the file"}')
    kept: Any = SimpleNamespace(data=SimpleNamespace(source=source))
    plain: Any = SimpleNamespace(data=SimpleNamespace(source=None))
    assert read_sections(kept, tmp_path) == {"post_processor": "of the file"}
    assert read_sections(plain, tmp_path) == {}
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "post_processor": null}')
    assert read_sections(plain, tmp_path) == {"version": "1.0", "post_processor": None}
    long = {"a": 1, "model": {"merges": ["x y"], "b": 2, "vocab": {"x": 0}}, "c": 3}
    (tmp_path / "tokenizer.json").write_text(json.dumps(long))
    found = read_sections(plain, tmp_path)
    assert found == {"a": 1, "model": {"merges": None, "b": 2, "vocab": None}, "c": 3}
