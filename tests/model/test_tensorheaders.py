"""Headers of safetensors files: what the library refuses is refused, with an error of ours."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from lowtide.errors import DataError
from lowtide.model.tensorheaders import read_header

Header = dict[str, Any]


def pack(header: Header | bytes, body: bytes, size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return (len(text) if size is None else size).to_bytes(8, "little") + text + body


def set_row(**fields: Any) -> Callable[[Header], None]:
    return lambda header: header["b"].update(fields)


def move(header: Header, first: int) -> None:
    """Place every tensor so many bytes further on."""
    for row in header.values():
        row["data_offsets"] = [place + first for place in row["data_offsets"]]


# Three tensors: a at 0 to 16, b at 16 to 48, c at 48 to 56.
EDITS: dict[str, Callable[[Header], object]] = {
    "places are fractions": set_row(data_offsets=[16.0, 48.0]),
    "places are true": set_row(data_offsets=[True, True]),
    "no places": set_row(data_offsets=[]),
    "one place": set_row(data_offsets=[16]),
    "three places": set_row(data_offsets=[16, 48, 48]),
    "places are text": set_row(data_offsets="ab"),
    "places are null": set_row(data_offsets=None),
    "places are an object": set_row(data_offsets={"0": 0}),
    "a place below 0": set_row(data_offsets=[-16, 16]),
    "a place beyond the file": set_row(data_offsets=[160, 192]),
    "a place beyond all numbers": set_row(data_offsets=[1 << 64, (1 << 64) + 32]),
    "an end that is too early": set_row(data_offsets=[16, 44]),
    "an end before the beginning": set_row(data_offsets=[48, 16]),
    "two tensors in one place": set_row(data_offsets=[0, 32]),
    "all moved by a number": lambda header: move(header, 4),
    "a hole": lambda header: header.pop("b"),
    "nothing": lambda header: header.clear(),
    "a row of null": lambda header: header.update(b=None),
    "a row of text": lambda header: header.update(b="F32"),
    "a row without a type": lambda header: header["b"].pop("dtype"),
    "a type that is a list": set_row(dtype=["F32"]),
    "another type": set_row(dtype="F16"),
    "a shape of fractions": set_row(shape=[2.0, 4.0]),
    "a shape of true": set_row(shape=[True, 8]),
    "a shape below 0": set_row(shape=[-2, -4]),
    "a shape of text": set_row(shape="24"),
    "a shape that is a number": set_row(shape=8),
    "a shape of shapes": set_row(shape=[[2], [4]]),
    "a shape beyond all numbers": set_row(shape=[1 << 63, 1 << 63]),
    "another shape": set_row(shape=[2, 3]),
    "an empty shape": set_row(shape=[0]),
}
TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "one name twice": lambda text: text[:-1] + b', "b": ' + text[6 : text.index(b"}") + 1] + b"}",
    "one field twice": lambda text: text.replace(b'"shape"', b'"shape": [9], "shape"', 1),
    "lists in lists": lambda _: b"[" * 100_000,
    "objects in objects": lambda _: b'{"a":' * 100_000,
    "a list": lambda _: b"[]",
    "null": lambda _: b"null",
    "no text": lambda _: b"",
    "UTF-16": lambda text: text.decode().encode("utf-16-le"),
    "a mark before it": lambda text: b"\xef\xbb\xbf" + text,
    "no UTF-8": lambda text: text.replace(b'"b"', b'"\xff"'),
    "text behind it": lambda text: text + b"\0" * 8,
    "no number": lambda text: text.replace(b"[", b"[NaN,", 1),
    "a number of thousands of digits": lambda text: text.replace(b"[", b"[1" + b"0" * 5000, 1),
}
FILES: dict[str, Callable[[bytes], bytes]] = {
    "bytes behind the tensors": lambda data: data + b"\0" * 8,
    "a byte less": lambda data: data[:-1],
    "a cut header": lambda data: data[:40],
    "seven bytes": lambda data: data[:7],
    "no bytes": lambda _: b"",
    "a header of nothing": lambda data: b"\0" * 8 + data[8:],
    "a header beyond the file": lambda data: (90 << 20).to_bytes(8, "little") + data[8:],
    "a header beyond all files": lambda data: b"\xff" * 8 + data[8:],
}


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Header, bytes]:
    """The header and the data of a file of three tensors."""
    numbers = np.arange(14, dtype="<f4")
    tensors = {"a": numbers[:4], "b": numbers[4:12].reshape(2, 4), "c": numbers[12:]}
    save_file(tensors, tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def is_refused(path: Path, data: bytes) -> str:
    """The message for a file that the library refuses."""
    path.write_bytes(data)
    with pytest.raises(SafetensorError):
        load_file(path)
    with pytest.raises(DataError, match="not a readable safetensors file") as caught:
        read_header(path)
    assert caught.value.path == path and caught.value.next_step
    return caught.value.message


@pytest.mark.parametrize("name", EDITS)
def test_a_header_that_places_tensors_wrongly_is_refused(name, parts, tmp_path):
    header = copy.deepcopy(parts[0])
    EDITS[name](header)
    is_refused(tmp_path / "file", pack(header, parts[1]))


@pytest.mark.parametrize("name", TEXTS)
def test_a_header_that_is_no_plain_object_is_refused(name, parts, tmp_path):
    text = json.dumps(parts[0]).encode()
    is_refused(tmp_path / "file", pack(TEXTS[name](text), parts[1]))


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_length_is_refused(name, parts, tmp_path):
    is_refused(tmp_path / "file", FILES[name](pack(*parts)))


def test_messages_stay_short(parts, tmp_path):
    header, body = parts
    for shape in ([10**4000] * 50, [2] * 100_000):  # the second one's product takes minutes
        header["b"]["shape"] = shape
        (tmp_path / "file").write_bytes(pack(header, body))
        with pytest.raises(DataError, match="b has the shape") as caught:
            read_header(tmp_path / "file")
        assert len(caught.value.message) < 500


def test_what_the_library_accepts_is_read(parts, tmp_path):
    header, body = parts
    plain = json.dumps(header).encode()
    accepted = {
        "as it is": pack(header, body),
        "metadata": pack({"__metadata__": {"format": "pt"}, **header}, body),
        "blanks around it": pack(b" " * 8 + plain + b"\n" * 8, body),
        "an odd length": pack(plain, body, len(plain) + -len(plain) % 8),
        "an empty tensor": pack(
            {**header, "d": {"dtype": "F32", "shape": [0, 3], "data_offsets": [56, 56]}}, body
        ),
    }
    for name, data in accepted.items():
        (tmp_path / name).write_bytes(data)
        expected = load_file(tmp_path / name)
        found = read_header(tmp_path / name)
        assert found.keys() == expected.keys()
        for key, row in found.items():
            assert row.shape == expected[key].shape
            stored = data[row.offset : row.offset + row.num_bytes]
            assert stored == expected[key].tobytes()
