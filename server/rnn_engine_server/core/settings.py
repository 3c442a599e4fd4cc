"""Settings of the server that an operator can choose, and limits on what one request may ask for."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import get_args
from urllib.parse import urlsplit

from rnn_engine.bounds import (
    EXISTING_FOLDER,
    FILE,
    FLAG,
    FOLDER,
    MAX_QUEUED,
    POSITIVE_SECONDS,
    SECONDS,
    SETTING,
    SIZE,
    TEXT,
    Kind,
    Settings,
    described,
    optional_part,
    part,
    setting,
)
from rnn_engine.chat_template.answer import ReasoningFormat
from rnn_engine.errors import InvalidRequestError, PromptTooLongError
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.auth.keys import UNBOUNDED, ApiKey, Rate, check_keys, parse_rate
from rnn_engine_server.telemetry.logs import LogSettings


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


_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def _count(unit: str) -> Kind:
    return Kind(int, "NUMBER", low=0, unit=unit)


@dataclass(frozen=True, slots=True)
class Limits(Settings):
    """Limits on the size and the time of one request, and on how many requests a client may have.

    A request beyond a limit is refused, and the error names the limit. A field that is added here becomes an option of
    `rnn-engine serve`, and `/props` lists it, under the same name.
    """

    max_body_bytes: int = setting(64 * 2**20, SIZE).help("The size of a JSON body.")
    max_upload_bytes: int = setting(256 * 2**20, SIZE).help("The size of an uploaded state file.")
    max_unzip_bytes: int = setting(16 * 2**30, SIZE).help("The size of all files in an archive that an admin unpacks.")
    max_unzip_files: int = setting(10_000, _count("files")).help("Files in an archive that an admin unpacks.")
    max_held_bytes: int = setting(512 * 2**20, SIZE).help(
        "Memory for all bodies that are held at a time, for the values read from them, for vectors of answers, and "
        "for copies of states for exports. One body may take half."
    )
    max_messages: int = setting(8192, _count("messages")).help("Messages of a chat.")
    max_text_bytes: int = setting(4 * 2**20, SIZE).help(
        "The size in UTF-8 of all texts of a request; for a chat, of the text that the template makes."
    )
    max_prompt_tokens: int = setting(2**20, _count("tokens")).help(
        "Tokens of all prompts of a request. A prompt counts once for each answer, and a context once for each choice."
    )
    max_answers: int = setting(2048, _count("answers")).help("Answers to a request: prompts times `n` or `best_of`.")
    max_answer_tokens: int = setting(2**20, _count("tokens")).help("Answers times `max_tokens`.")
    max_logprob_entries: int = setting(2**19, _count("entries")).help(
        "Tokens with log-probabilities in an answer, times one plus the number of their alternatives."
    )
    max_choices: int = setting(2048, _count("choices")).help("Choices that a request scores.")
    max_inputs: int = setting(2048, _count("inputs")).help("Texts or inputs that a request embeds, ranks or tokenizes.")
    max_vector_numbers: int = setting(2**23, _count("numbers")).help("Numbers of all vectors or states of an answer.")
    max_stop_strings: int = setting(64, _count("strings")).help(
        "Strings in `stop`; tokens in `stop_token_ids`; texts in `dry_sequence_breakers`."
    )
    max_stop_bytes: int = setting(4096, SIZE).help(
        "The size of all strings in `stop` together, and of all in `bad_words`."
    )
    max_request_seconds: int = setting(3600, _count("seconds")).help(
        "Time for a whole request; also the greatest `timeout`, and the one of requests that set none."
    )
    max_queued: int = setting(MAX_QUEUED, _count("requests")).help(
        "Requests that wait for a slot; as many more may wait from clients that have less than their share."
    )
    max_queue_seconds: int = setting(300, _count("seconds")).help(
        "Time for a request to wait for a slot; then it gets 429."
    )
    max_load_seconds: int = setting(300, _count("seconds")).help(
        "Time for a request to wait until its model is loaded; then it gets 503."
    )
    max_client_requests: int = setting(1024, _count("requests")).help(
        "Running requests of one API key, or of one address if there are no keys; further ones get 429."
    )
    max_mixed_states: int = setting(8, _count("states")).help("States that a request mixes, each in a slot of its own.")
    max_grammar_bytes: int = setting(2**18, SIZE).help("The size of a grammar, a schema or a list of choices.")
    max_grammar_seconds: int = setting(2, _count("seconds")).help(
        "Time of the processor to compile one grammar; 0.25 for a `bnf_schema`."
    )
    max_bias_entries: int = setting(4096, _count("entries")).help("Tokens in `logit_bias`, and words in `bad_words`.")
    max_responses: int = setting(4096, _count("responses")).help(
        "Responses that are kept for an API key; beyond them, the oldest is dropped."
    )
    max_response_seconds: int = setting(30 * 24 * 3600, _count("seconds")).help("Time for which a response is kept.")
    max_key_background: int = setting(64, _count("responses")).help(
        "Responses of an API key that run in the background; further ones get 429."
    )
    max_conversations: int = setting(1024, _count("conversations")).help(
        "Conversations that are kept for an API key; beyond them, the one that was unused for longest is dropped."
    )
    max_conversation_bytes: int = setting(256 * 2**20, SIZE).help(
        "The size of all conversations and responses that are kept for an API key; beyond it, what was unused for "
        "longest is dropped."
    )
    max_all_conversation_bytes: int = setting(2**30, SIZE).help(
        "The size of the conversations and responses of all API keys; beyond it, the key with the most loses what it "
        "has not used for longest."
    )
    max_collections: int = setting(1024, _count("collections")).help("Collections of documents of an API key.")
    max_collection_documents: int = setting(100_000, _count("documents")).help("Documents of a collection.")
    max_collection_bytes: int = setting(2**30, SIZE).help(
        "The size of all collections of an API key: on disk, or in memory without `--collection-folder`."
    )
    max_all_collection_bytes: int = setting(2**32, SIZE).help("The size of the collections of all API keys.")
    max_file_bytes: int = setting(512 * 2**20, SIZE).help("The size of a file that is uploaded for a job.")
    max_key_files: int = setting(10_000, _count("files")).help("Files of an API key, uploaded ones and results.")
    max_key_file_bytes: int = setting(4 * 2**30, SIZE).help("The size of all files of an API key.")
    max_all_file_bytes: int = setting(16 * 2**30, SIZE).help("The size of the files of all API keys.")
    max_batch_lines: int = setting(50_000, _count("lines")).help("Requests of one batch.")
    max_key_batches: int = setting(1000, _count("batches")).help(
        "Batches of an API key; beyond them, the oldest that has ended is forgotten, without its files."
    )
    max_key_tunings: int = setting(100, _count("tuning jobs")).help(
        "Tuning jobs of an API key; beyond them, the oldest that has ended is forgotten, without its states."
    )
    max_tuning_tokens: int = setting(1024, _count("tokens")).help(
        "Tokens of an example of a tuning job; only the beginning of a longer one is learnt."
    )

    def check(self, limit: str, field: str, value: float) -> None:
        """Raise InvalidRequestError, which names `field`, if `value` is greater than the limit called `limit`."""
        most: int = getattr(self, limit)
        if value > most:
            allowed = f"at most {most} {BOUNDS[limit].unit} ({limit})"
            if limit == "max_prompt_tokens":
                raise PromptTooLongError(field, int(value), most, allowed)
            raise InvalidRequestError(field, value, allowed)


BOUNDS: Mapping[str, Kind] = MappingProxyType({one.name: one.metadata[SETTING].kind for one in fields(Limits)})
"""The kind of each limit's number, with its unit."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings(Settings):
    """Limits on the number of connections, and on how many seconds a client may take before it is disconnected."""

    max_connections: int = setting(4096, Kind(int, low=1)).help(  # fewer if fewer files may be open
        "The most open connections. A further one closes the connection that has waited longest for a request."
    )
    max_per_client: int = setting(2048, Kind(int, low=1), "--max-connections-per-client").help(
        "The most open connections of one address."
    )
    idle_seconds: float = setting(75.0, POSITIVE_SECONDS).help("How long a connection may wait for a request.")
    header_seconds: float = setting(20.0, POSITIVE_SECONDS).help(
        "How long the headers of a request may take to arrive."
    )
    body_seconds: float = setting(30.0, POSITIVE_SECONDS).help(
        "How long the body of a request may take to arrive; every 4 kB that arrive extend the time by a second."
    )
    stall_seconds: float = setting(30.0, POSITIVE_SECONDS).help(
        "Drop a client that has read less than 512 bytes a second of its answer for this long."
    )


# The web pages that may call the server: its own, and those of listed origins. `auth/admission.py` checks them.

ANY = "*"
"""The origin that allows all pages; only for servers with API keys, which a page must know."""


LOCAL = "localhost"
"""The origin that allows every port of this machine's own names."""


def check_origin(origin: str) -> str:
    """Return a web origin in the form that browsers send. Raises InvalidRequestError if `origin` is not one."""
    parts = urlsplit(origin)
    written = origin.lower().removesuffix("/")
    if origin not in (ANY, LOCAL, "null") and (
        not parts.netloc or written != f"{parts.scheme}://{parts.netloc.lower()}"
    ):
        raise InvalidRequestError(
            "cors origin", origin, "an origin such as https://chat.example:8080, localhost, null or *"
        )
    return written


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Settings of access control. Without keys, only this machine and the server's own pages may use the server."""

    keys: tuple[ApiKey, ...] = ()
    open: bool = setting(False, FLAG, "--open").help(
        "Without an API key, accept requests from every machine that reaches the address."
    )
    allowed_hosts: tuple[str, ...] = setting((), Kind(metavar="NAME"), "--allowed-host").help(
        "A host name that clients may use for the server, besides localhost, the name in --host and IP addresses. "
        "Checked if there is no API key or if this option is given."
    )
    cors_origins: tuple[str, ...] = setting((), Kind(metavar="ORIGIN", parse=check_origin), "--cors-origin").help(
        "Let web pages of this origin call the server: one such as https://chat.example, localhost for pages of this "
        "machine, or * for any origin, which needs an API key."
    )
    tls: TlsFiles | None = optional_part(TlsFiles, "the certificate that it belongs to")
    share_cache: bool = setting(False).help(
        "Share the cached states of prompts among all API keys; clients can then guess what others have asked."
    )
    rate: Rate = setting(UNBOUNDED, Kind(metavar="RATE", parse=parse_rate), "--key-rate").help(
        "The most that each API key, or each address without keys, may use in a minute: requests=60,tokens=100000, or "
        "one of the two. Further requests get the status 429. The file of keys may set another rate for a key.  "
        "[default: no limit]"
    )

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for settings that contradict each other."""
        check_keys(self.keys)
        if ANY in self.cors_origins and not self.keys:
            message = "--cors-origin * needs an API key; without one, any page on the web could use the server"
            raise InvalidRequestError("cors origin", ANY, "origins one by one", message)


def _parse_mode(text: str) -> int:
    if not re.fullmatch("[0-7]{3,4}", text):
        raise InvalidRequestError("mode", text, "three or four octal digits, such as 660")
    return int(text, 8)


@dataclass(frozen=True, slots=True)
class ServerSettings(Settings):
    """All settings of a server that an operator can choose: address, folders, access control, limits and log."""

    host: str = setting("127.0.0.1", TEXT, "-i", "--host", "--ip").help(
        "The address to listen on. 0.0.0.0 listens on all addresses, and needs an API key or --open."
    )
    port: int = setting(65530, Kind(int, low=0, high=65535), "-p", "--port").help(
        "The port to listen on; 0 takes any free port."
    )
    unix_socket: Path | None = setting(None, FILE).help("Listen on a Unix socket at this path instead of a port.")
    unix_socket_mode: int = setting(0o660, Kind(int, "MODE", parse=_parse_mode, write=lambda mode: f"{mode:o}")).help(
        "The permissions of the Unix socket's file, in octal digits."
    )
    drain_seconds: float = setting(10.0, SECONDS).help("How long running requests may go on after a signal to stop.")
    model_folder: Path | None = setting(None, EXISTING_FOLDER).help(
        "Let admins load models from this folder while the server runs, by POST /admin/models/load."
    )
    admin_folders: tuple[Path, ...] = setting((), EXISTING_FOLDER, "--admin-folder").help(
        "Let admins read files in this folder and write settings there, as in ai00's assets/configs."
    )
    unzip_folders: tuple[Path, ...] = setting((), EXISTING_FOLDER, "--unzip-folder").help(
        "Let admins unpack archives into folders within this folder, and replace those that exist."
    )
    collection_folder: Path | None = setting(None, FOLDER).help(
        "Keep collections of documents in this folder over restarts. Use --cache-folder, too, so that the states "
        "after the documents are kept.  [default: keep them in memory]"
    )
    job_folder: Path | None = setting(None, FOLDER).help(
        "Keep files, batches and tuning jobs in this folder over restarts. Only one server at a time may use it.  "
        "[default: jobs in --state-folder, or else a temporary folder]"
    )
    tuning_share: float = setting(0.5, Kind(float, "SHARE", low=0, high=1)).help(
        "The share of time that tuning a state may take while requests run. Without requests, it takes all."
    )
    loading: LoadSettings | None = None  # with which models are loaded, for tuning; None = no state can be tuned
    root_path: str = setting("", Kind(metavar="PATH")).help(
        "Serve under this path, too, such as /llm, for a proxy that passes on paths that begin with it. A proxy that "
        "removes it needs no such option."
    )
    web: bool = setting(True, FLAG, "--web/--no-web").help(
        "Serve the web page at /. With --no-web, / is the reference of the routes, like /docs."
    )
    strict: bool = setting(False, FLAG, "--strict/--no-strict").help(
        "Refuse requests with unknown fields. --no-strict ignores these fields and lists them in the answer's header "
        "X-Left-Out, unless a name looks misspelled. Both accept null and known fields that can't change the answer, "
        "and both refuse known fields of other systems that would change the answer."
    )
    any_model: bool | None = setting(None, FLAG, "--any-model/--known-models").help(
        "Let the default model answer requests for an unknown model, instead of the status 404.  [default: if one "
        "model is served, without --strict]"
    )
    idle_unload_seconds: float | None = setting(None, POSITIVE_SECONDS, "--idle-unload").help(
        "Unload a model that no request has used for this long; the next request for it loads it again.  [default: "
        "never]"
    )
    exit_on_failure: bool = setting(False).help(
        "Exit with code 1 if a failed device can't be opened again, so that a supervisor restarts the server."
    )
    auth: AuthSettings = part(AuthSettings)
    reasoning_format: ReasoningFormat = setting("auto", Kind(choices=get_args(ReasoningFormat))).help(
        "auto and deepseek return the thoughts in <think>...</think> as `reasoning_content`; none leaves them in the "
        "content."
    )
    limits: Limits = part(Limits)
    connections: ConnectionSettings = part(ConnectionSettings)
    logs: LogSettings = part(LogSettings)

    def __post_init__(self) -> None:
        """Raise InvalidRequestError if one of the times is negative or not finite."""
        Settings.__post_init__(self)
        if not _ROOT_PATH.fullmatch(self.root_path):
            raise InvalidRequestError("root_path", self.root_path, "a path such as /llm")
        if self.tuning_share > 1:
            raise InvalidRequestError("tuning_share", self.tuning_share, "a number from 0 to 1")
