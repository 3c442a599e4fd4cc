"""TLS settings of the server: files with a certificate and its key."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from rnn_engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of the server's certificate and of its key, both in PEM."""

    cert: Path  # the server's own certificate first, then those between it and the authority that clients trust
    key: Path | None = None  # None = in the same file

    def make_context(self) -> ssl.SSLContext:
        """Read the files. Raises InvalidRequestError, which names the file, if one is unusable."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        for name, path in (("tls-cert", self.cert), ("tls-key", self.key)):
            if path is not None:
                _check_readable(name, path)
        key_name, key = ("tls-key", self.key) if self.key else ("tls-cert", self.cert)
        try:
            context.load_cert_chain(self.cert, self.key, password=_refuse_password)
        except _EncryptedError:
            raise InvalidRequestError(key_name, str(key), "a key that is not encrypted") from None
        except ssl.SSLError as error:
            raise _not_serving(self.cert, key_name, key, error) from error
        return context


class _EncryptedError(Exception):
    """Raised if the key's file is encrypted with a password."""


def _refuse_password() -> str:
    raise _EncryptedError


def _check_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(name, str(path), f"a file that can be read ({error.strerror})") from error


def _not_serving(cert: Path, key_name: str, key: Path, error: ssl.SSLError) -> InvalidRequestError:
    """Return an error that says which of the two files is wrong, since OpenSSL's `error` does not."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return InvalidRequestError(key_name, str(key), f"the key of the certificate in {cert}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert)
    except ssl.SSLError:
        return InvalidRequestError("tls-cert", str(cert), "a file with a certificate in PEM")
    return InvalidRequestError(key_name, str(key), "a file with the certificate's key in PEM")
