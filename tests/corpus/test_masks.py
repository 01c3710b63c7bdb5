"""Masks of personal data: what is one and what only looks like one, and that others stay."""

from __future__ import annotations

import ipaddress
import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.corpus.cleaning import clean_block
from lowtide.corpus.quality import MASKS, canonical_masks
from lowtide.corpus.reading import ReadingSettings
from lowtide.corpus.removals import RULES
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.textblocks import Segment, TextBlock
from lowtide.errors import UsageError

ALL = ",".join(MASKS)


def mask(text: str, kinds: str = ALL) -> str:
    return clean(text, kinds)[0]


def clean(text: str, kinds: str = ALL) -> tuple[str, dict[str, tuple[int, int]]]:
    raw = text.encode()
    block = TextBlock(0, 0, "text", raw, (Segment(0, 0, 0, len(raw)),))
    options = CleaningSettings(normalize=False, filter=False, dedup=False, mask=kinds)
    cleaned = clean_block(block, ReadingSettings(separator=b""), options, paths={})
    for rule, _ in cleaned.samples:
        assert not RULES[rule].startswith("masked")  # they would say what was masked
    counts = {rule: row for rule, row in zip(RULES, cleaned.counts, strict=True) if row[0]}
    return cleaned.text.tobytes().decode(), counts


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("4111111111111111 12 4111111111111111x", "[card] 12 4111111111111111x"),
        ("write to jo.smith+x@mail.example.co.uk.", "write to [email]."),
        ("<a@b.org>, 'c_d@e-f.net' mailto:g@h.de?x", "<[email]>, '[email]' mailto:[email]?x"),
        ("a@b.com,c@d.com", "[email],[email]"),
        ("at 8.8.8.8: down (151.101.1.69).", "at [ip]: down ([ip])."),
        ("2001:db8:0:1:1:1:1:1 2a00:1450:4001::200e, 2606:4700::1111", "[ip] [ip], [ip]"),
        ("call +49 30 1234567 or +1 (555) 234-5678!", "call [phone] or [phone]!"),
        ("(212) 555-0123 212-555-0123 212.555.0123", "[phone] [phone] [phone]"),
        ("DE89370400440532013000 GB29 NWBK 6016 1331 9268 19", "[iban] [iban]"),
        ("4111 1111 1111 1111, 378282246310005 5555-5555-5555-4444", "[card], [card] [card]"),
    ],
)
def test_what_is_one_is_replaced(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "@user, a @ b, a@b, a@b.c, x..y@z.com? me@localhost and @media.screen",
        "version 1.2.3.4.5, v1.2.3.4, 10.0.0.1 127.0.0.1 192.168.1.1 256.1.1.1 01.2.3.4 1.2.3",
        "12:30:45 00:1b:44:11:3a:b7 std::vector fe80::1 ::1 2000: a year",
        "on 2015-11-16, pages 212-555, ISBN 978-3-16-148410-0, 555-1234, 1,000,000,000",
        "112-555-0123 212-155-0123 212-555.0123 x212-555-0123 212-555-01234",
        "DE89370400440532013001 XX89370400440532013000 DE8937040044053201300 AB12",
        "4111 1111 1111 1112, 4111-1111 1111-1111, 41111111111111111111111, 1234567812345670",
        "+12 34, +0 123 456 789, 5+5, + 49 30 1234567",
        "",
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert mask(text) == text


def test_only_kinds_that_are_asked_for() -> None:
    text = "a@b.com 8.8.8.8 +49 30 1234567 DE89370400440532013000 4111111111111111"
    for kind in MASKS:
        masked, counts = clean(text, kind)
        assert masked.count(f"[{kind}]") == 1
        assert masked.count("[") == 1
        assert list(counts) == [f"masked_{kind}"]
    assert clean(text)[1]["masked_email"] == (1, len("a@b.com"))
    assert mask(text, "") == text


@given(st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_check_digits_decide_over_cards(source: random.Random) -> None:
    digits = [int(digit) for digit in "4" + "".join(source.choices("0123456789", k=14))]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-1::-2]]
    check = -(sum(doubled) + sum(digits[-2::-2])) % 10
    number = "".join(map(str, digits))
    assert mask(f"{number}{check} ok", "card") == "[card] ok"
    other = (check + source.randrange(1, 10)) % 10
    assert mask(f"{number}{other}", "card") == f"{number}{other}"


@given(st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_check_digits_decide_over_accounts(source: random.Random) -> None:
    account = "".join(source.choices(string.digits + string.ascii_uppercase, k=18))
    check = 98 - int("".join(str(int(sign, 36)) for sign in account + "DE00")) % 97
    assert mask(f"DE{check:02}{account}", "iban") == "[iban]"
    other = f"DE{(check + source.randrange(1, 90)) % 97 + 2:02}{account}"
    if other[2:4] != f"{check:02}" and (int(other[2:4]) - check) % 97:
        assert mask(other, "iban") == other


@given(st.integers(0, (224 << 24) - 1))
def test_addresses_are_masked_if_they_are_global(number: int) -> None:
    address = ipaddress.ip_address(number)
    expected = "[ip]" if address.is_global else str(address)
    if str(address) not in ("192.0.0.9", "192.0.0.10"):  # single addresses of a private network
        assert mask(str(address), "ip") == expected


@given(st.text(st.sampled_from("a1.@+-() :[]Z2DE89\n"), max_size=80))
@settings(max_examples=300)
def test_masked_text_has_nothing_to_mask(text: str) -> None:
    text = f"text\n{text}"
    once = mask(text)
    assert mask(once) == once
    assert "\n".join(mask(f"text {line}") for line in text.split("\n")) == mask(
        "\n".join(f"text {line}" for line in text.split("\n"))
    )


def test_names_have_one_form() -> None:
    assert canonical_masks("card, email") == "email,card"
    with pytest.raises(UsageError, match="--mask 'mail' is not one of email, ip, phone, iban"):
        CleaningSettings(mask="mail")
