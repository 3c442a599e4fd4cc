"""Settings of the server that an operator can choose, and limits on what one request may ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import get_args

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
    optional_part,
    part,
    setting,
)
from rnn_engine.chat_template.answer import ReasoningFormat
from rnn_engine.errors import InvalidRequestError, PromptTooLongError
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.auth.keys import ApiKey, check_keys
from rnn_engine_server.auth.rates import UNBOUNDED, Rate, parse_rate
from rnn_engine_server.auth.tls import TlsFiles
from rnn_engine_server.telemetry.logs import LogSettings

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def _count(unit: str) -> Kind:
    return Kind(int, "NUMBER", low=0, unit=unit)


@dataclass(frozen=True, slots=True)
class Limits(Settings):
    """Limits on the size and the time of one request, and on how many requests a client may have.

    A request beyond a limit is refused, and the error names the limit. A field that is added here becomes an option of
    `rnn-engine serve`, and `/props` lists it, under the same name.
    """

    max_body_bytes: int = setting(64 * 2**20, "The size of a JSON body.", SIZE)
    max_upload_bytes: int = setting(256 * 2**20, "The size of an uploaded state file.", SIZE)
    max_unzip_bytes: int = setting(16 * 2**30, "The size of all files in an archive that an admin unpacks.", SIZE)
    max_unzip_files: int = setting(10_000, "Files in an archive that an admin unpacks.", _count("files"))
    max_held_bytes: int = setting(
        512 * 2**20,
        "Memory for all bodies that are held at a time, for the values read from them, and for copies of states for "
        "exports. One body may take half.",
        SIZE,
    )
    max_messages: int = setting(8192, "Messages of a chat.", _count("messages"))
    max_text_bytes: int = setting(
        4 * 2**20, "The size in UTF-8 of all texts of a request; for a chat, of the text that the template makes.", SIZE
    )
    max_prompt_tokens: int = setting(
        2**20,
        "Tokens of all prompts of a request. A prompt counts once for each answer, and a context once for each choice.",
        _count("tokens"),
    )
    max_answers: int = setting(2048, "Answers to a request: prompts times `n` or `best_of`.", _count("answers"))
    max_answer_tokens: int = setting(2**20, "Answers times `max_tokens`.", _count("tokens"))
    max_logprob_entries: int = setting(
        2**19,
        "Tokens with log-probabilities in an answer, times one plus the number of their alternatives.",
        _count("entries"),
    )
    max_choices: int = setting(2048, "Choices that a request scores.", _count("choices"))
    max_inputs: int = setting(2048, "Texts or inputs that a request embeds, ranks or tokenizes.", _count("inputs"))
    max_vector_numbers: int = setting(2**23, "Numbers of all vectors or states of an answer.", _count("numbers"))
    max_stop_strings: int = setting(
        64, "Strings in `stop`; tokens in `stop_token_ids`; texts in `dry_sequence_breakers`.", _count("strings")
    )
    max_stop_bytes: int = setting(4096, "The size of all strings in `stop` together, and of all in `bad_words`.", SIZE)
    max_request_seconds: int = setting(
        3600,
        "Time for a whole request; also the greatest `timeout`, and the one of requests that set none.",
        _count("seconds"),
    )
    max_queued: int = setting(
        MAX_QUEUED,
        "Requests that wait for a slot; as many more may wait from clients that have less than their share.",
        _count("requests"),
    )
    max_queue_seconds: int = setting(300, "Time for a request to wait for a slot; then it gets 429.", _count("seconds"))
    max_load_seconds: int = setting(
        300, "Time for a request to wait until its model is loaded; then it gets 503.", _count("seconds")
    )
    max_client_requests: int = setting(
        1024,
        "Running requests of one API key, or of one address if there are no keys; further ones get 429.",
        _count("requests"),
    )
    max_mixed_states: int = setting(8, "States that a request mixes, each in a slot of its own.", _count("states"))
    max_grammar_bytes: int = setting(2**18, "The size of a grammar, a schema or a list of choices.", SIZE)
    max_grammar_seconds: int = setting(
        2, "Time of the processor to compile one grammar; 0.25 for a `bnf_schema`.", _count("seconds")
    )
    max_bias_entries: int = setting(4096, "Tokens in `logit_bias`, and words in `bad_words`.", _count("entries"))
    max_responses: int = setting(
        4096, "Responses that are kept for an API key; beyond them, the oldest is dropped.", _count("responses")
    )
    max_response_seconds: int = setting(30 * 24 * 3600, "Time for which a response is kept.", _count("seconds"))
    max_key_background: int = setting(
        64, "Responses of an API key that run in the background; further ones get 429.", _count("responses")
    )
    max_conversations: int = setting(
        1024,
        "Conversations that are kept for an API key; beyond them, the one that was unused for longest is dropped.",
        _count("conversations"),
    )
    max_conversation_bytes: int = setting(
        256 * 2**20,
        "The size of all conversations and responses that are kept for an API key; beyond it, what was unused for "
        "longest is dropped.",
        SIZE,
    )
    max_all_conversation_bytes: int = setting(
        2**30,
        "The size of the conversations and responses of all API keys; beyond it, the key with the most loses what it "
        "has not used for longest.",
        SIZE,
    )
    max_collections: int = setting(1024, "Collections of documents of an API key.", _count("collections"))
    max_collection_documents: int = setting(100_000, "Documents of a collection.", _count("documents"))
    max_collection_bytes: int = setting(
        2**30, "The size of all collections of an API key: on disk, or in memory without `--collection-folder`.", SIZE
    )
    max_all_collection_bytes: int = setting(2**32, "The size of the collections of all API keys.", SIZE)
    max_file_bytes: int = setting(512 * 2**20, "The size of a file that is uploaded for a job.", SIZE)
    max_key_files: int = setting(10_000, "Files of an API key, uploaded ones and results.", _count("files"))
    max_key_file_bytes: int = setting(4 * 2**30, "The size of all files of an API key.", SIZE)
    max_all_file_bytes: int = setting(16 * 2**30, "The size of the files of all API keys.", SIZE)
    max_batch_lines: int = setting(50_000, "Requests of one batch.", _count("lines"))
    max_key_batches: int = setting(
        1000,
        "Batches of an API key; beyond them, the oldest that has ended is forgotten, without its files.",
        _count("batches"),
    )
    max_key_tunings: int = setting(
        100,
        "Tuning jobs of an API key; beyond them, the oldest that has ended is forgotten, without its states.",
        _count("tuning jobs"),
    )
    max_tuning_tokens: int = setting(
        1024, "Tokens of an example of a tuning job; only the beginning of a longer one is learnt.", _count("tokens")
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

    max_connections: int = setting(  # fewer if the process may not open twice as many files
        4096,
        "The most open connections. A further one closes the connection that has waited longest for a request.",
        Kind(int, low=1),
    )
    max_per_client: int = setting(  # those through a Unix socket are not counted
        2048, "The most open connections of one address.", Kind(int, low=1), "--max-connections-per-client"
    )
    idle_seconds: float = setting(75.0, "How long a connection may wait for a request.", POSITIVE_SECONDS)
    header_seconds: float = setting(20.0, "How long the headers of a request may take to arrive.", POSITIVE_SECONDS)
    body_seconds: float = setting(
        30.0,
        "How long the body of a request may take to arrive; every 4 kB that arrive extend the time by a second.",
        POSITIVE_SECONDS,
    )
    stall_seconds: float = setting(
        30.0, "Drop a client that has read less than 512 bytes a second of its answer for this long.", POSITIVE_SECONDS
    )


# The web pages that may call the server: its own, and those of listed origins. `auth/admission.py` checks them.

ANY = "*"
"""The origin that allows all pages; only for servers with API keys, which a page must know."""


def _parse_origin(text: str) -> str:
    from rnn_engine_server.auth.admission import check_origin

    return check_origin(text)


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Settings of access control. Without keys, only this machine and the server's own pages may use the server."""

    keys: tuple[ApiKey, ...] = ()
    open: bool = setting(
        False, "Without an API key, accept requests from every machine that reaches the address.", FLAG, "--open"
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "A host name that clients may use for the server, besides localhost, the name in --host and IP addresses. "
        "Checked if there is no API key or if this option is given.",
        Kind(metavar="NAME"),
        "--allowed-host",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        "Let web pages of this origin call the server: one such as https://chat.example, localhost for pages of this "
        "machine, or * for any origin, which needs an API key.",
        Kind(metavar="ORIGIN", parse=_parse_origin),
        "--cors-origin",
    )
    tls: TlsFiles | None = optional_part(TlsFiles, "the certificate that it belongs to")
    share_cache: bool = setting(
        False, "Share the cached states of prompts among all API keys; clients can then guess what others have asked."
    )
    rate: Rate = setting(
        UNBOUNDED,
        "The most that each API key, or each address without keys, may use in a minute: requests=60,tokens=100000, or "
        "one of the two. Further requests get the status 429. The file of keys may set another rate for a key.  "
        "[default: no limit]",
        Kind(metavar="RATE", parse=parse_rate),
        "--key-rate",
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
class ServerSettings:
    """All settings of a server that an operator can choose: address, folders, access control, limits and log."""

    host: str = setting(
        "127.0.0.1",
        "The address to listen on. 0.0.0.0 listens on all addresses, and needs an API key or --open.",
        TEXT,
        "-i",
        "--host",
        "--ip",
    )
    port: int = setting(
        65530, "The port to listen on; 0 takes any free port.", Kind(int, low=0, high=65535), "-p", "--port"
    )
    unix_socket: Path | None = setting(None, "Listen on a Unix socket at this path instead of a port.", FILE)
    unix_socket_mode: int = setting(
        0o660,
        "The permissions of the Unix socket's file, in octal digits.",
        Kind(int, "MODE", parse=_parse_mode, write=lambda mode: f"{mode:o}"),
    )
    drain_seconds: float = setting(10.0, "How long running requests may go on after a signal to stop.", SECONDS)
    model_folder: Path | None = setting(
        None,
        "Let admins load models from this folder while the server runs, by POST /admin/models/load.",
        EXISTING_FOLDER,
    )
    admin_folders: tuple[Path, ...] = setting(
        (),
        "Let admins read files in this folder and write settings there, as in ai00's assets/configs.",
        EXISTING_FOLDER,
        "--admin-folder",
    )
    unzip_folders: tuple[Path, ...] = setting(
        (),
        "Let admins unpack archives into folders within this folder, and replace those that exist.",
        EXISTING_FOLDER,
        "--unzip-folder",
    )
    collection_folder: Path | None = setting(
        None,
        "Keep collections of documents in this folder over restarts. Use --cache-folder, too, so that the states "
        "after the documents are kept.  [default: keep them in memory]",
        FOLDER,
    )
    embed_model: Path | None = setting(
        None,
        "Answer ai00's /api/oai/embeds with the embedding model in this folder: ONNX with its tokenizer.json. Needs "
        "the extra `embeds`.",
        EXISTING_FOLDER,
    )
    job_folder: Path | None = setting(
        None,
        "Keep files, batches and tuning jobs in this folder over restarts. Only one server at a time may use it.  "
        "[default: jobs in --state-folder, or else a temporary folder]",
        FOLDER,
    )
    tuning_share: float = setting(
        0.5,
        "The share of time that tuning a state may take while requests run. Without requests, it takes all.",
        Kind(float, "SHARE", low=0, high=1),
    )
    loading: LoadSettings | None = None  # with which models are loaded, for tuning; None = no state can be tuned
    root_path: str = setting(
        "",
        "Serve under this path, too, such as /llm, for a proxy that passes on paths that begin with it. A proxy that "
        "removes it needs no such option.",
        Kind(metavar="PATH"),
    )
    web: bool = setting(
        True,
        "Serve the web page at /. With --no-web, / is the reference of the routes, like /docs.",
        FLAG,
        "--web/--no-web",
    )
    strict: bool = setting(
        False,
        "Refuse requests with unknown fields. --no-strict ignores these fields and lists them in the answer's header "
        "X-Left-Out, unless a name looks misspelled. Both accept null and known fields that can't change the answer, "
        "and both refuse known fields of other systems that would change the answer.",
        FLAG,
        "--strict/--no-strict",
    )
    any_model: bool | None = setting(
        None,
        "Let the default model answer requests for an unknown model, instead of the status 404.  [default: if one "
        "model is served, without --strict]",
        FLAG,
        "--any-model/--known-models",
    )
    idle_unload_seconds: float | None = setting(
        None,
        "Unload a model that no request has used for this long; the next request for it loads it again.  [default: "
        "never]",
        POSITIVE_SECONDS,
        "--idle-unload",
    )
    exit_on_failure: bool = setting(
        False, "Exit with code 1 if a failed device can't be opened again, so that a supervisor restarts the server."
    )
    auth: AuthSettings = part(AuthSettings)
    reasoning_format: ReasoningFormat = setting(
        "auto",
        "auto and deepseek return the thoughts in <think>...</think> as `reasoning_content`; none leaves them in the "
        "content.",
        Kind(choices=get_args(ReasoningFormat)),
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
