"""What a page says of a tokenizer's learning: a damaged record is named, never a surprise."""

import json

import pytest

from lowtide.errors import DataError
from lowtide.reporting.tokenizers import _read_record


@pytest.mark.parametrize(
    "record",
    [
        True,
        [],
        {"input_files": {}},
        {"input_files": [3]},
        {"input_files": [{"path": 3}]},
        {"counts": []},
        {"counts": {"bytes": "many"}},
        {"settings": []},
    ],
)
def test_a_record_of_other_types_is_named(tmp_path, record):
    path = tmp_path / "training.json"
    path.write_text(json.dumps(record))
    with pytest.raises(DataError) as caught:
        _read_record(path)
    assert caught.value.path == path
    assert caught.value.next_step is not None


def test_a_record_may_lack_what_it_does_not_know(tmp_path):
    path = tmp_path / "training.json"
    for record in ({}, {"input_files": [{"path": "a"}], "counts": {"bytes": 3}, "settings": {}}):
        path.write_text(json.dumps(record))
        assert _read_record(path) == record
