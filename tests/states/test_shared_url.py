"""Addresses of shared stores, and the errors of wrong ones."""

from __future__ import annotations

import re

import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine_states.shared.config import StoreConfig, StoreUrl


@pytest.mark.parametrize(
    ("text", "shown", "tls"),
    [
        ("valkey://host", "valkey://host", False),
        ("redis://ann:secret@host:1/2", "redis://host:1/2", False),
        ("valkeys://:secret@host/0?ssl_ca_certs=/ca.pem", "valkeys://host/0", True),
        ("rediss://[::1]:6380", "rediss://[::1]:6380", True),
        ("unix://:secret@/run/store.sock?db=3", "unix:///run/store.sock", False),
    ],
)
def test_addresses(text: str, shown: str, tls: bool) -> None:
    assert StoreUrl.parse(text) == StoreUrl(text, shown, tls)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the scheme '' is unknown"),
        ("host:6379", "the scheme 'host' is unknown"),
        ("http://ann:secret@host", "the scheme 'http' is unknown"),
        ("valkey://", "the host is missing"),
        ("valkey://:secret@", "the host is missing"),
        ("valkey://host:port", "Port could not be cast"),
        ("valkey://host:70000", "Port out of range"),
        ("valkey://ann:sec#ret@host", "as %23"),
        ("valkey://ann:sec/ret@host", "as %2F"),
        ("valkey://ann:1/sec@ret@host", "as %40"),
        ("valkey://ann:sec?ret@host", "as %3F"),
        ("valkey://ann:secret\u2100@host", "as %23"),
        ("ann:secret@host", "the scheme '' is unknown"),
        ("valkey:/ann:secret@host", "the scheme '' is unknown"),
        ("valkey://host?password=secret", "unknown option 'password' after '?'; there are: none"),
        ("valkey://host?secret", "expected NAME=VALUE after '?'"),
        ("valkey://host/first", "'first' is not the number of a database"),
        ("valkey://host?ssl_ca_certs=x", "unknown option 'ssl_ca_certs' after '?'; there are: none"),
        ("valkeys://host?max_connections=1", "unknown option 'max_connections' after '?'; there are: ssl_ca_certs"),
        ("unix://", "the socket's path is missing"),
        ("unix:///x?db=-1", "'-1' is not the number of a database"),
    ],
)
def test_a_wrong_address_is_told_without_its_password(text: str, said: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        StoreUrl.parse(text)
    assert said in str(raised.value)
    assert "valkey://[USER:PASSWORD@]HOST[:PORT][/DATABASE]" in str(raised.value)
    assert not re.search("sec|ret", str(raised.value).replace("PASSWORD", ""))


def test_an_address_is_shown_without_its_password() -> None:
    config = StoreConfig(StoreUrl.parse("valkey://ann:secret@host"))
    assert "valkey://host" in repr(config)
    assert "secret" not in repr(config)
