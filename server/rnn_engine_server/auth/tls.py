"""TLS settings of the server: files with a certificate and its key."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from rnn_engine.bounds import FILE, described, setting
from rnn_engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of the server's certificate and of its key, both in PEM."""

    cert: Path = field(
        metadata=described(
            "Serve HTTPS with the certificate in this file (PEM), which also holds any intermediate certificates.",
            FILE,
            "--tls-cert",
        )
    )
    key: Path | None = setting(None, FILE, "--tls-key").help(
        "The file of the certificate's key (PEM, not encrypted).  [default: the file of the certificate]"
    )

    def make_context(self) -> ssl.SSLContext:
        """Make the server's TLS context from the files.

        Raises InvalidRequestError, which names the file, if one is unusable.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        for name, path in (("tls-cert", self.cert), ("tls-key", self.key)):
            if path is not None:
                _check_readable(name, path)
        key_name, key = ("tls-key", self.key) if self.key else ("tls-cert", self.cert)
        try:
            context.load_cert_chain(self.cert, self.key, password=_refuse_password)
        except _EncryptedError:
            message = f"--{key_name}: the key in {key} is encrypted; expected one that is not"
            raise InvalidRequestError(key_name, str(key), "a key that is not encrypted", message) from None
        except ssl.SSLError as error:
            raise _not_serving(self.cert, key_name, key, error) from error
        return context


class _EncryptedError(Exception):
    """Raised if the file of the TLS key is encrypted with a password."""


def _refuse_password() -> str:
    raise _EncryptedError


def _check_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        message = f"--{name}: {path} can't be read: {error.strerror}"
        raise InvalidRequestError(name, str(path), "a file that can be read", message) from error


def _not_serving(cert: Path, key_name: str, key: Path, error: ssl.SSLError) -> InvalidRequestError:
    """Return an error that says if the certificate's or the key's file is wrong, since OpenSSL's `error` does not."""
    if error.reason == "KEY_VALUES_MISMATCH":
        allowed = f"the key of the certificate in {cert}"
        return InvalidRequestError(key_name, str(key), allowed, f"--{key_name}: {key} is not {allowed}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert)
    except ssl.SSLError:
        allowed = "a certificate in PEM"
        return InvalidRequestError("tls-cert", str(cert), allowed, f"--tls-cert: {cert} does not hold {allowed}")
    allowed = "the certificate's key in PEM"
    return InvalidRequestError(key_name, str(key), allowed, f"--{key_name}: {key} does not hold {allowed}")
