"""The options that say who may come in."""

from __future__ import annotations

from pathlib import Path

import click

from rnn_engine.cli.option_groups import option_group
from rnn_engine.errors import InvalidRequestError
from server.doors.keys import ApiKey, check_key_name, read_keys
from server.doors.origins import check_origin
from server.doors.rates import UNBOUNDED, Rate, parse_rate
from server.doors.settings import DoorSettings
from server.doors.tls import TlsFiles


def _parse_origins(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """A click callback."""
    try:
        return tuple(map(check_origin, texts))
    except InvalidRequestError as error:
        raise click.BadParameter(str(error)) from error


def _parse_rate(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Rate:
    """A click callback."""
    try:
        return UNBOUNDED if text is None else parse_rate(text)
    except InvalidRequestError as error:
        raise click.BadParameter(str(error)) from error


def _app_key(text: str) -> ApiKey:
    name, equals, key = text.partition("=")
    if not equals:
        raise click.BadParameter("--app-key: expected NAME=KEY")
    return ApiKey.of(key, check_key_name(name))


def _make_doors(
    api_key: str | None,
    key_file: Path | None,
    app_keys: tuple[str, ...],
    open_to_all: bool,
    allowed_hosts: tuple[str, ...],
    cors_origins: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    share_cache: bool,
    rate: Rate,
) -> DoorSettings:
    keys = () if key_file is None else read_keys(key_file)
    if api_key is not None:
        keys = (ApiKey.of(api_key), *keys)
    keys = (*map(_app_key, app_keys), *keys)
    if key_file is not None and not keys:
        raise click.UsageError(f"--api-key-file {key_file}: has no key in it")
    if tls_key is not None and tls_cert is None:
        raise click.UsageError("--tls-key needs --tls-cert, the certificate that it belongs to")
    tls = None if tls_cert is None else TlsFiles(tls_cert, tls_key)
    return DoorSettings(keys, open_to_all, allowed_hosts, cors_origins, tls, share_cache, rate)


door_options = option_group(
    "Who may come in",
    _make_doors,
    click.option(
        "--api-key",
        metavar="KEY",
        envvar="RNN_ENGINE_API_KEY",
        show_envvar=True,
        help="Admit only requests that send it as `Authorization: Bearer KEY`. Whoever may list this machine's "
        "processes can read it here, but not in the variable.  [default: admit this machine]",
    ),
    click.option(
        "--api-key-file",
        "key_file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="RNN_ENGINE_API_KEY_FILE",
        show_envvar=True,
        help="The same for several keys, one a line: NAME:SCOPE KEY, as `rnn-engine key` makes them.",
    ),
    click.option(
        "--key-rate",
        "rate",
        callback=_parse_rate,
        metavar="RATE",
        help="What each API key may use in a minute, or without keys each address, as requests=60,tokens=100000, or "
        "one of both; beyond it the answer is 429. The file of keys may say otherwise for a key.  [default: no bound]",
    ),
    click.option(
        "--app-key",
        "app_keys",
        multiple=True,
        metavar="NAME=KEY",
        help="An API key for everything under a name, as ai00's app_keys. May be given several times.",
    ),
    click.option(
        "--open",
        "open_to_all",
        is_flag=True,
        help="Without an API key, admit other machines, too: everyone who reaches the address.",
    ),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="A name by which clients may call the server, besides localhost, the name in --host and addresses; "
        "checked without an API key or where it is given. May be given several times.",
    ),
    click.option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        callback=_parse_origins,
        metavar="ORIGIN",
        help="Let web pages of this origin call the server, as https://chat.example, or of this machine, as "
        "localhost, or with an API key of any, as *. May be given several times.",
    ),
    click.option(
        "--tls-cert",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Speak HTTPS with the certificate in this file (PEM), and with those below its authority.",
    ),
    click.option(
        "--tls-key",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The certificate's key (PEM, not encrypted).  [default: in the file of the certificate]",
    ),
    click.option(
        "--share-cache",
        is_flag=True,
        help="Let all API keys go on from what any of them has asked before; they can then guess what others asked.",
    ),
)
