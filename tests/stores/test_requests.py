"""What a store is asked, and what its answers mean, by a stand-in that notes every request."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.errors import DataError, UsageError
from lowtide.stores import objects, refusals
from lowtide.stores.objects import ObjectInfo, Store
from lowtide.stores.refusals import ObjectChangedError, ObjectMissingError, StoreDownError
from lowtide.stores.urls import StoreURL

URL = StoreURL("s3", "bucket", "a/b.txt")
WHEN = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


class Answers:
    """Stands for obstore: answers in turn, errors are raised."""

    exceptions = SimpleNamespace(
        AlreadyExistsError=type("AlreadyExistsError", (Exception,), {}),
        PreconditionError=type("PreconditionError", (Exception,), {}),
    )

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def ask(client: Any, *given: Any, **more: Any) -> Any:
            self.asked.append((name, given, more))
            answer = self.answers.pop(0) if self.answers else None
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What would be waited, without the part that is drawn."""
    found: list[float] = []
    monkeypatch.setattr(objects, "_sleep", lambda seconds, ended: found.append(seconds))
    monkeypatch.setattr(objects.random, "uniform", lambda low, high: high)
    return found


def make(*answers: Any) -> tuple[Store, Answers]:
    store = object.__new__(Store)
    asked = Answers(*answers)
    store._obstore, store._client, store._down = asked, None, threading.Event()  # pyright: ignore
    return store, asked


def row(size: int = 5, tag: str | None = '"x"', path: str = "a/b.txt") -> dict[str, Any]:
    return {"size": size, "e_tag": tag, "last_modified": WHEN, "path": path, "version": "7"}


def got(data: bytes, **more: Any) -> Any:
    return SimpleNamespace(meta=row(**{"size": len(data), **more}), bytes=lambda: data)


@pytest.mark.parametrize(
    ("text", "kind", "words", "step"),
    [
        ("no route to 169.254.169.254/latest", StoreDownError, "no credentials for this store", ""),
        ("metadata.google.internal is down", StoreDownError, "no credentials for this store", ""),
        ("Account must be specified", StoreDownError, "no credentials for this store", ""),
        ("status code: 404 <Code>NoSuchBucket</Code>", DataError, "no bucket bucket", "endpoint"),
        ("status code: 404", ObjectMissingError, "no such object", "typing errors"),
        ("status code: 401", StoreDownError, r"denies access \(HTTP 401\)", "SKIP_SIGNATURE"),
        ("status code: 403 <Code>No</Code>", StoreDownError, r"\(HTTP 403 No\)", "SKIP_SIGNATURE"),
        ("status code: 412", ObjectChangedError, "changed while it was read", "leave it alone"),
        ("status code: 416", ObjectChangedError, "changed while it was read", "leave it alone"),
        ("status code: 299", DataError, r"the store refuses \(HTTP 299\)", None),
        ("status code: 300", DataError, "the bucket is in another region", "AWS_REGION"),
        ("status code: 399", DataError, "the bucket is in another region", "AWS_REGION"),
        ("incorrectly configured region", DataError, "in another region", "AWS_REGION"),
        ("status code: 400", DataError, r"the store refuses \(HTTP 400\)", None),
        ("URL cannot be recognised", DataError, "not an address of an object store", None),
    ],
)
def test_errors_that_do_not_pass(text: str, kind: type, words: str, step: str | None) -> None:
    found = refusals.find_refusal(ValueError(text), URL)
    assert type(found) is kind
    with pytest.raises(kind, match=words):
        raise found
    assert found.path == str(URL)
    assert step is None if found.next_step is None else step is not None
    assert found.next_step is None or (step or "") in found.next_step


@pytest.mark.parametrize("text", ["status code: 503", "URL", "recognised", "connection lost"])
def test_errors_that_may_pass(text: str) -> None:
    assert refusals.find_refusal(ValueError(text), URL) is None


def test_every_status_passes_or_ends_a_request() -> None:
    statuses = range(200, 600)
    errors = {status: ValueError(f"status code: {status}") for status in statuses}
    passing = {status for status in statuses if refusals.find_refusal(errors[status], URL) is None}
    assert passing == {408, 425, 429, 500, 502, 503, 504}


def test_errors_are_known_by_their_kinds_too() -> None:
    assert isinstance(refusals.find_refusal(FileNotFoundError("x"), URL), ObjectMissingError)
    denied = type("PermissionDeniedError", (Exception,), {})
    found = refusals.find_refusal(denied("x - y?signature=z"), URL, writes=True)
    assert found is not None and found.message == "the store denies writing (y)"
    assert found.next_step is not None and "may write and delete" in found.next_step


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "ValueError"), ("a\nb", "a"), ("a - b - c?d=e f", "c f"), ("x" * 300, "x" * 200)],
)
def test_what_a_store_says_fits_in_a_line(text: str, reason: str) -> None:
    assert refusals.describe_reason(ValueError(text)) == reason


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_without_a_tag_the_time_is_one(tag: str | None) -> None:
    store, asked = make(row(tag=tag), got(b"01234", tag=tag))
    info = store.head(URL)
    assert info == ObjectInfo(URL, 5, "2026-01-02T03:04:05+00:00", has_etag=False)
    assert store.read(info, 0, 5) == b"01234"
    assert asked.asked[1][2] == {"options": {"range": (0, 5)}}


def test_a_range_is_asked_for_under_its_tag_until_all_of_it_comes(waits: list[float]) -> None:
    store, asked = make(got(b"012", size=5), got(b"2345"[:3], size=5))
    info = ObjectInfo(URL, 5, "x")
    assert store.read(info, 4, 0) == b""
    assert store.read(info, 2, 3) == b"012"
    options = {"options": {"range": (2, 5), "if_match": '"x"'}}
    assert asked.asked == [("get", ("a/b.txt",), options)]
    store, asked = make(got(b"0", size=5), got(b"012", size=5))
    assert store.read(info, 2, 3) == b"012"
    assert waits == [objects._FIRST_WAIT_S]
    store, _ = make(got(b"012", size=6))
    with pytest.raises(ObjectChangedError):
        store.read(info, 2, 3)


def test_a_small_object_is_read_whole_or_refused(waits: list[float]) -> None:
    store, _ = make(got(b"0123", size=5), got(b"01234"))
    assert store.read_whole(URL, most_bytes=5) == (ObjectInfo(URL, 5, "x"), b"01234")
    assert len(waits) == 1
    store, _ = make(got(b"01234"))
    with pytest.raises(DataError, match="an object of 5 bytes, expected 4 at most"):
        store.read_whole(URL, most_bytes=4)


def test_waits_grow_to_a_limit_and_long_ones_are_told(
    waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    store, asked = make(*[ConnectionError("lost")] * 99)
    with pytest.raises(StoreDownError, match=f"in {objects._ATTEMPTS} attempts over 0 s: lost"):
        store.head(URL)
    assert len(asked.asked) == objects._ATTEMPTS == len(waits) + 1
    growing = [objects._FIRST_WAIT_S * 2**number for number in range(len(waits))]
    assert waits == [min(objects._LONGEST_WAIT_S, seconds) for seconds in growing]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == sum(seconds >= objects._TOLD_WAIT_S for seconds in waits) > 0
    assert f"attempt {len(waits)} of {objects._ATTEMPTS}" in told[-1]


def test_what_another_created_is_ours_if_it_holds_the_same(waits: list[float]) -> None:
    taken = Answers.exceptions.AlreadyExistsError("x")
    store, asked = make({"e_tag": '"new"'})
    assert store.create(URL, b"01") == "new"
    assert asked.asked == [("put", ("a/b.txt", b"01"), {"mode": "create"})]
    assert make(taken, got(b"01"))[0].create(URL, b"01") == "x"
    assert make(taken, got(b"10"))[0].create(URL, b"01") is None
    gone = FileNotFoundError("x")
    assert make(taken, gone, {"e_tag": "new"})[0].create(URL, b"01") == "new"
    assert len(waits) == 1
    large = bytes((1 << 20) + 1)
    assert make(taken, got(large))[0].create(URL, large) == "x"
    assert make(taken, got(large[:-1]))[0].create(URL, b"01") is None
    with pytest.raises(DataError, match="expected 1048576 at most"):
        make(taken, got(large))[0].create(URL, b"01")
    with pytest.raises(DataError, match="stored and removed again and again"):
        make(*[taken, gone] * objects._ATTEMPTS)[0].create(URL, b"01")


def test_what_is_replaced_has_the_tag_that_is_expected() -> None:
    whole = {"use_multipart": False}  # parts have no condition
    store, asked = make({"e_tag": '"new"'})
    assert store.replace(URL, b"01", "x") == "new"
    assert asked.asked == [("put", ("a/b.txt", b"01"), {"mode": {"e_tag": '"x"'}, **whole})]
    for error in (FileNotFoundError("x"), Answers.exceptions.PreconditionError("x")):
        assert make(error)[0].replace(URL, b"01", "x") is None
    there = StoreURL("gs", "bucket", "a")
    store, asked = make(row(), {"e_tag": "new"})
    assert store.replace(there, b"01", "x") == "new"
    assert asked.asked[1] == ("put", ("a", b"01"), {"mode": {"version": "7"}, **whole})
    store, asked = make(row(tag='"y"'))
    assert store.replace(there, b"01", "x") is None
    assert len(asked.asked) == 1
    store, asked = make(ConnectionError("lost"))
    with pytest.raises(StoreDownError, match="in 1 attempts"):
        store.replace(URL, b"01", "x")


def test_large_files_go_in_parts(tmp_path: Path) -> None:
    path, part = tmp_path / "a", objects._PART_BYTES
    sizes = (part, part + 1, objects._MOST_PARTS * part + 1)
    wanted = (None, part, part + 1)
    for size, chunk in zip(sizes, wanted, strict=True):
        path.touch()
        with path.open("r+b") as file:
            file.truncate(size)
        store, asked = make()
        store.upload(URL, path)
        more = {"use_multipart": False}
        if chunk is not None:
            more = {"use_multipart": True, "chunk_size": chunk, "max_concurrency": 1}
        assert asked.asked == [("put", ("a/b.txt", path), more)]


def test_objects_are_removed_a_thousand_at_a_time() -> None:
    urls = [StoreURL("s3", "bucket", str(number)) for number in range(2001)]
    store, asked = make()
    store.delete(urls)
    assert [given[0] for _, given, _ in asked.asked] == [
        [url.key for url in urls[first : first + 1000]] for first in (0, 1000, 2000)
    ]
    store, asked = make(FileNotFoundError(), None, FileNotFoundError(), None)
    store.delete(urls[:3])
    assert [given[0] for _, given, _ in asked.asked] == [["0", "1", "2"], ["0"], ["1"], ["2"]]


def test_lists_go_on_behind_the_last_name_after_a_lost_connection(waits: list[float]) -> None:
    def pages(*names: str) -> Any:
        yield [row(path=name) for name in names]
        raise ConnectionError("lost")

    store, asked = make(pages("a/1", "a/2"), iter([[row(path="a/3")]]))
    found = list(store.iter_objects(StoreURL("s3", "bucket", "a")))
    assert [info.url.key for info in found] == ["a/1", "a/2", "a/3"]
    assert asked.asked == [
        ("list", ("a",), {"offset": None, "chunk_size": 1000}),
        ("list", ("a",), {"offset": "a/2", "chunk_size": 1000}),
    ]
    assert len(waits) == 1
    store, asked = make(iter([]))
    assert list(store.iter_objects(StoreURL("s3", "bucket", ""))) == []
    assert asked.asked[0][1] == (None,)


def test_names_right_under_a_prefix_are_sorted() -> None:
    found = {"common_prefixes": ["a/z/", "a/b"], "objects": [{"path": "a/c.txt"}]}
    store, asked = make(found, {"common_prefixes": [], "objects": []}, row())
    assert store.list_names(StoreURL("s3", "bucket", "a")) == ["b", "c.txt", "z"]
    assert store.list_names(StoreURL("s3", "bucket", "")) == []
    assert [given for _, given, _ in asked.asked] == [("a",), (None,)]
    assert store.find_time(URL) == WHEN.timestamp()


@pytest.mark.parametrize(
    ("scheme", "profile", "allowed", "more"),
    [
        ("s3", False, None, {}),
        ("s3", True, "true", {"credential_provider": "profile"}),
        ("s3a", True, None, {"credential_provider": "profile"}),
        ("gs", True, "1", {}),
        ("az", True, "TRUE", {}),
        ("s3", False, "no", {}),
    ],
)
def test_how_a_store_is_opened(
    monkeypatch: pytest.MonkeyPatch, scheme: str, profile: bool, allowed: str | None, more: Any
) -> None:
    asked: list[Any] = []
    imported: list[Any] = []

    def from_url(root: str, **options: Any) -> str:
        asked.append((root, options))
        return "client"

    def import_package(name: str, what: str, **given: Any) -> Any:
        imported.append((name, what, given))
        return SimpleNamespace(from_url=from_url)

    monkeypatch.setattr(objects, "import_package", import_package)
    monkeypatch.setattr(objects, "needs_profile", lambda: profile)
    monkeypatch.setattr(objects, "profile_credentials", lambda root: "profile")
    for cloud in ("AWS", "GOOGLE", "AZURE"):
        monkeypatch.delenv(f"{cloud}_ALLOW_HTTP", raising=False)
    cloud = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
    if allowed is not None:
        monkeypatch.setenv(f"{cloud}_ALLOW_HTTP", allowed)
    store = Store(StoreURL(scheme, "bucket", ""))
    assert store._client == "client"
    ((root, options),) = asked
    assert root == f"{scheme}://bucket"
    plain = {"timeout": "60s", "connect_timeout": "10s"}
    http = {"allow_http": True} if allowed in ("true", "1", "TRUE") else {}
    assert options == {
        "client_options": plain | http,
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=60)},
        **more,
    }
    assert imported == [
        ("obstore", f"{scheme}://", {"path": f"{scheme}://bucket"}),
        ("obstore.store", f"{scheme}://", {}),
    ]


def test_one_client_of_a_bucket_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[StoreURL] = []
    monkeypatch.setattr(objects, "Store", lambda root: made.append(root) or len(made))
    monkeypatch.setattr(objects, "_open", {})
    first = objects.open_store(URL)
    assert objects.open_store(StoreURL("s3", "bucket", "other")) is first
    assert objects.open_store(StoreURL("s3", "other", "")) is not first
    assert objects.open_store(StoreURL("gs", "bucket", "")) is not first
    assert [str(root) for root in made] == ["s3://bucket", "s3://other", "gs://bucket"]
    monkeypatch.setattr(objects, "_open", {(-1, "s3://bucket"): "another process's"})
    with pytest.raises(UsageError, match="cannot be read in a process forked from one"):
        objects.open_store(URL)


def test_writes_are_told_as_such_when_they_are_denied() -> None:
    denied = ValueError("status code: 403")
    for use in (
        lambda store: store.create(URL, b""),
        lambda store: store.replace(URL, b"", "x"),
        lambda store: store.upload(URL, Path(__file__)),
        lambda store: store.delete([URL]),
    ):
        with pytest.raises(StoreDownError, match="denies writing"):
            use(make(denied)[0])
    for use in (
        lambda store: store.head(URL),
        lambda store: store.list_names(URL),
        lambda store: list(store.iter_objects(URL)),
        lambda store: store.find_time(URL),
        lambda store: store.read_whole(URL, most_bytes=1),
    ):
        with pytest.raises(StoreDownError, match="denies access"):
            use(make(denied)[0])


def test_waits_are_not_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []
    slept: list[float] = []
    monkeypatch.setattr(objects.random, "uniform", lambda *given: drawn.append(given) or 0.5)
    monkeypatch.setattr(objects, "_sleep", lambda seconds, ended: slept.append(seconds))
    for attempt in (1, 2, 3, 20):
        objects._wait(attempt, URL, "lost", threading.Event())
    assert drawn == [(0.6, 1.0)] * 4
    assert slept == pytest.approx([0.1, 0.2, 0.4, 15.0])


def test_a_store_that_was_given_up_is_asked_once_until_it_answers(waits: list[float]) -> None:
    lost = [ConnectionError("lost")] * 11
    store, asked = make(*lost, row(), *lost[:10])
    with pytest.raises(StoreDownError, match="in 10 attempts over"):
        store.head(URL)
    assert len(waits) == 9
    with pytest.raises(StoreDownError, match="in 1 attempts over"):  # others need not try as long
        store.find_time(URL)
    assert len(waits) == 9 and len(asked.asked) == 11
    assert store.head(URL).size == 5
    with pytest.raises(StoreDownError, match="in 10 attempts over"):
        store.head(URL)


def test_a_refusal_is_an_answer(waits: list[float]) -> None:
    lost = [ConnectionError("lost")] * 10
    store, _ = make(*lost, ValueError("status code: 404"), *lost)
    for words in ("in 10 attempts", "no such object", "in 10 attempts"):
        with pytest.raises(DataError, match=words):
            store.head(URL)


def test_one_attempt_that_fails_gives_nothing_up(waits: list[float]) -> None:
    store, _ = make(ConnectionError("lost"), ConnectionError("lost"), row())
    with pytest.raises(StoreDownError, match="in 1 attempts"):
        store.replace(URL, b"", "x")
    assert store.head(URL).size == 5 and len(waits) == 1


def test_who_waits_is_woken_when_another_gives_up() -> None:
    down = threading.Event()
    waiting = threading.Thread(target=objects._sleep, args=(1000.0, down))
    waiting.start()
    down.set()
    waiting.join(60)
    assert not waiting.is_alive()
