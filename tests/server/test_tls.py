"""HTTPS with a certificate from files."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from aiohttp import ClientSession, ClientSSLError, TCPConnector
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.core.app import make_app, run, serving
from rnn_engine_server.core.process import open_listeners, url_of
from rnn_engine_server.core.settings import AuthSettings, ServerSettings, TlsFiles
from tests.support.fake_engine import FakeEngine
from tests.support.http import Through

TEXT = {"prompt": "a", "stream": True}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `cert`, `key`, `both`, the key of another certificate, and unusable files."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, other = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("localhost")
    chain, key = b"".join(pem.bytes() for pem in certificate.cert_chain_pems), certificate.private_key_pem.bytes()
    contents = {
        "cert": chain,
        "key": key,
        "both": key + chain,
        "other-key": other.private_key_pem.bytes(),
        "empty": b"",
        "junk": b"hunter2 \xff",
        "encrypted": load_pem_private_key(key, None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
        ),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("cert", "key"), [("cert", "key"), ("both", None)])
async def test_answers_over_tls(
    through: Through, files: Path, authority: trustme.CA, cert: str, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    trusting, settings = ssl.create_default_context(), ServerSettings(port=0)
    authority.configure_trust(trusting)
    tls = TlsFiles(files / cert, None if key is None else files / key).make_context()
    with open_listeners(settings) as [listener], caplog.at_level(logging.WARNING):
        url = url_of(listener, "https")
        async with serving(make_app(await through(FakeEngine()), settings), [listener], settings, tls):
            async with ClientSession(connector=TCPConnector(ssl=trusting)) as client:
                response = await client.post(f"{url}/v1/completions", json=TEXT, headers={"Origin": url})
                assert (await response.text()).endswith("data: [DONE]\n\n")
            async with ClientSession() as client:  # it does not trust the test's authority
                with pytest.raises(ClientSSLError):
                    await client.get(f"{url}/health")
            host, port = listener.getsockname()
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # without TLS
            with suppress(ConnectionError):
                assert not (await reader.read()).startswith(b"HTTP/")
            writer.close()
            async with ClientSession(connector=TCPConnector(ssl=trusting)) as client:
                assert (await client.get(f"{url}/health")).status == 200
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("cert", "other-key", r"--tls-key: .*other-key is not the key of the certificate in .*cert"),
        ("cert", None, r"--tls-cert: .*cert does not hold the certificate's key in PEM"),
        ("cert", "empty", r"--tls-key: .*empty does not hold the certificate's key in PEM"),
        ("cert", "junk", r"--tls-key: .*junk does not hold the certificate's key in PEM"),
        ("cert", "encrypted", r"--tls-key: the key in .*encrypted is encrypted; expected one that is not"),
        ("junk", "key", r"--tls-cert: .*junk does not hold a certificate in PEM"),
        ("key", "key", r"--tls-cert: .*key does not hold a certificate in PEM"),
        ("absent", "key", r"--tls-cert: .*absent can't be read: No such file"),
        ("cert", "absent", r"--tls-key: .*absent can't be read: No such file"),
    ],
)
def test_files_that_do_not_serve_are_told_before_anything_is_loaded(
    files: Path, cert: str, key: str | None, message: str
) -> None:
    async def load() -> FakeEngine:
        raise AssertionError("nothing is loaded before that")

    auth = AuthSettings(tls=TlsFiles(files / cert, None if key is None else files / key))
    with pytest.raises(InvalidRequestError, match=message):
        run(load, ServerSettings(port=0, auth=auth), lambda *_: None)
