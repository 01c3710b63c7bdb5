from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.stores.urls import show_path, store_url


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        (Path("s3://bucket/a"), "s3://bucket/a"),  # a path has lost a slash
        ("gs://bucket", "gs://bucket"),
        ("az://container/x", "az://container/x"),
    ],
)
def test_a_url_is_read_as_a_string_and_as_a_path(given: str | Path, url: str) -> None:
    assert str(store_url(given)) == url
    assert show_path(given) == url


@pytest.mark.parametrize("path", ["data/mine", "/s3/x", "s3", "./s3:/x", "http://host/x", None])
def test_a_path_is_no_url(path: str | None) -> None:
    assert store_url(path) is None


def test_a_url_without_a_bucket_is_named() -> None:
    with pytest.raises(UsageError, match=r"names no bucket\n  next: write s3://BUCKET/PREFIX"):
        store_url("s3://")


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="never given in a URL") as refused:
        store_url("s3://name:geheim@bucket/x")
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("url", ["s3://bucket/x/../y", "s3://bucket/..", "gs://bucket/../x"])
def test_a_way_up_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"has \.\. in it"):
        store_url(url)
    assert store_url("s3://bucket/a..b/...") is not None
