"""What a path in a store says of its object, as a disk would."""

from __future__ import annotations

import stat

import pytest

from lowtide.stores import paths
from lowtide.stores.objects import ObjectInfo
from lowtide.stores.urls import StoreURL


def info(key: str = "a", tag: str = "x", size: int = 7) -> ObjectInfo:
    return ObjectInfo(url=StoreURL("s3", "bucket", key), size=size, tag=tag)


def test_an_object_is_a_file_to_read_whose_tag_is_its_time() -> None:
    found = paths._status(info())
    assert stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o444
    assert found.st_size == 7 and found.st_nlink == 1
    assert (found.st_ino, found.st_dev, found.st_uid, found.st_gid) == (0, 0, 0, 0)
    number = paths.tag_number(info())
    assert found.st_mtime_ns == found.st_ctime_ns == found.st_atime_ns == number
    assert found[stat.ST_MTIME] == number // 10**9
    assert 0 <= number < 1 << 63
    assert paths._status(info(tag="y")).st_mtime_ns != number


def test_the_objects_that_were_looked_at_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paths, "_infos", type(paths._infos)())
    for key in ("a", "b", "a", "c"):
        paths.keep_info(info(key), kept=2)
    assert list(paths._infos) == ["s3://bucket/a", "s3://bucket/c"]


def test_an_object_is_no_folder_and_no_link() -> None:
    path = paths.StorePath("s3://bucket/a/b.txt")
    assert path.is_dir() is False
    assert path.is_symlink() is False
    assert path.expanduser() is path
    assert repr(path) == "StorePath('s3://bucket/a/b.txt')"
