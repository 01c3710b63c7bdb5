"""What stands in a tokenizer.json beside its vocabulary."""

from typing import Any

import pytest

from lowtide.model.templates import begin_token

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
