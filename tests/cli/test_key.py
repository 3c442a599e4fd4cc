"""`rnn-engine key`, and the file of keys of `rnn-engine serve`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnn_engine_server.auth.keys import ApiKey, KeyRing, Principal, Rate, Scope, new_key, read_keys
from tests.support.cli import Command


def test_the_line_stands_for_the_key(rnn_engine: Command, tmp_path: Path) -> None:
    said = rnn_engine("key", "ann", "--scope", "use")
    [key] = re.findall(r"^key   (\S{40,})$", said, re.MULTILINE)
    [line] = re.findall(r"^line  (.+)$", said, re.MULTILINE)
    assert line == ApiKey.of(key, "ann", Scope.USE).line
    assert key not in line
    path = tmp_path / "keys"
    path.write_text(line)
    assert KeyRing(read_keys(path)).find(key) == Principal("ann", Scope.USE)


def test_the_line_has_what_the_key_may_use(rnn_engine: Command, tmp_path: Path) -> None:
    said = rnn_engine("key", "ann", "--weight", "2", "--rate", "tokens=100000,requests=60")
    path = tmp_path / "keys"
    path.write_text(said.partition("line  ")[2])
    assert [key.principal for key in read_keys(path)] == [Principal("ann", Scope.MANAGE, 2.0, Rate(60, 100000))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("key", "ann", "--weight", "-1"), "weight: '-1' is not allowed; expected a number above 0"),
        (("key", "ann", "--rate", "60"), "rate: '60' is not allowed; expected requests=NUMBER"),
        (
            ("serve", "--key-rate", "requests=0"),
            "Invalid value for '--key-rate': 'requests=0'; expected requests=NUMBER",
        ),
    ],
)
def test_what_a_key_can_not_use(rnn_engine: Command, options: tuple[str, ...], message: str) -> None:
    assert message in " ".join(rnn_engine(*options, code=2).split())


def test_no_two_keys_are_the_same() -> None:
    assert len({new_key() for _ in range(100)}) == 100


@pytest.mark.parametrize("name", ["", "a/b", "é", "x" * 65, ".a"])
def test_a_name_that_is_none(rnn_engine: Command, name: str) -> None:
    assert "key name" in rnn_engine("key", name, code=2)


def test_a_file_without_keys_opens_no_door(rnn_engine: Command, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# none yet\n")
    assert "contains no key" in rnn_engine("serve", "--api-key-file", path, code=2)


def test_a_tls_key_without_a_certificate(rnn_engine: Command) -> None:
    assert "--tls-key needs --tls-cert" in rnn_engine("serve", "--tls-key", "key.pem", code=2)
