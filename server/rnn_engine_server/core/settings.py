"""Settings of the server that an operator can choose, and limits on what one request may ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, get_args, get_type_hints

from rnn_engine.bounds import MAX_QUEUED
from rnn_engine.chat_template.answer import ReasoningFormat
from rnn_engine.errors import InvalidRequestError, PromptTooLongError, check_numbers
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.auth.keys import ApiKey, check_keys
from rnn_engine_server.auth.rates import UNBOUNDED, Rate
from rnn_engine_server.auth.tls import TlsFiles
from rnn_engine_server.telemetry.logs import LogSettings

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


@dataclass(frozen=True, slots=True)
class Bound:
    """The unit and the help text of one limit in `Limits`."""

    unit: str
    help: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the size and the time of one request, and on how many requests a client may have.

    A request beyond a limit is refused, and the error names the limit. A field that is added here becomes an option of
    `rnn-engine serve`, and `/props` lists it, under the same name.
    """

    max_body_bytes: Annotated[int, Bound("bytes", "The size of a JSON body.")] = 64 * 2**20
    max_upload_bytes: Annotated[int, Bound("bytes", "The size of an uploaded state file.")] = 256 * 2**20
    max_unzip_bytes: Annotated[int, Bound("bytes", "The size of all files in an archive that an admin unpacks.")] = (
        16 * 2**30
    )
    max_unzip_files: Annotated[int, Bound("files", "Files in an archive that an admin unpacks.")] = 10_000
    max_held_bytes: Annotated[
        int,
        Bound(
            "bytes",
            "Memory for all bodies that are held at a time, for the values read from them, and for copies of "
            "states for exports. One body may take half.",
        ),
    ] = 512 * 2**20
    max_messages: Annotated[int, Bound("messages", "Messages of a chat.")] = 8192
    max_text_bytes: Annotated[
        int,
        Bound("bytes", "The size in UTF-8 of all texts of a request; for a chat, of the text that the template makes."),
    ] = 4 * 2**20
    max_prompt_tokens: Annotated[
        int,
        Bound(
            "tokens",
            "Tokens of all prompts of a request. A prompt counts once for each answer, and a context once for each "
            "choice.",
        ),
    ] = 2**20
    max_answers: Annotated[int, Bound("answers", "Answers to a request: prompts times `n` or `best_of`.")] = 2048
    max_answer_tokens: Annotated[int, Bound("tokens", "Answers times `max_tokens`.")] = 2**20
    max_logprob_entries: Annotated[
        int,
        Bound(
            "entries", "Tokens with log-probabilities in an answer, times one plus the number of their alternatives."
        ),
    ] = 2**19
    max_choices: Annotated[int, Bound("choices", "Choices that a request scores.")] = 2048
    max_inputs: Annotated[int, Bound("inputs", "Texts or inputs that a request embeds, ranks or tokenizes.")] = 2048
    max_vector_numbers: Annotated[int, Bound("numbers", "Numbers of all vectors or states of an answer.")] = 2**23
    max_stop_strings: Annotated[
        int, Bound("strings", "Strings in `stop`; tokens in `stop_token_ids`; texts in `dry_sequence_breakers`.")
    ] = 64
    max_stop_bytes: Annotated[
        int, Bound("bytes", "The size of all strings in `stop` together, and of all in `bad_words`.")
    ] = 4096
    max_request_seconds: Annotated[
        int,
        Bound(
            "seconds", "Time for a whole request; also the greatest `timeout`, and the one of requests that set none."
        ),
    ] = 3600
    max_queued: Annotated[
        int,
        Bound(
            "requests",
            "Requests that wait for a slot; as many more may wait from clients that have less than their share.",
        ),
    ] = MAX_QUEUED
    max_queue_seconds: Annotated[int, Bound("seconds", "Time for a request to wait for a slot; then it gets 429.")] = (
        300
    )
    max_load_seconds: Annotated[
        int, Bound("seconds", "Time for a request to wait until its model is loaded; then it gets 503.")
    ] = 300
    max_client_requests: Annotated[
        int,
        Bound(
            "requests", "Running requests of one API key, or of one address if there are no keys; further ones get 429."
        ),
    ] = 1024
    max_mixed_states: Annotated[int, Bound("states", "States that a request mixes, each in a slot of its own.")] = 8
    max_grammar_bytes: Annotated[int, Bound("bytes", "The size of a grammar, a schema or a list of choices.")] = 2**18
    max_grammar_seconds: Annotated[
        int, Bound("seconds", "Time of the processor to compile one grammar; 0.25 for a `bnf_schema`.")
    ] = 2
    max_bias_entries: Annotated[int, Bound("entries", "Tokens in `logit_bias`, and words in `bad_words`.")] = 4096

    max_responses: Annotated[
        int, Bound("responses", "Responses that are kept for an API key; beyond them, the oldest is dropped.")
    ] = 4096
    max_response_seconds: Annotated[int, Bound("seconds", "Time for which a response is kept.")] = 30 * 24 * 3600
    max_key_background: Annotated[
        int, Bound("responses", "Responses of an API key that run in the background; further ones get 429.")
    ] = 64
    max_conversations: Annotated[
        int,
        Bound(
            "conversations",
            "Conversations that are kept for an API key; beyond them, the one that was unused for longest is dropped.",
        ),
    ] = 1024
    max_conversation_bytes: Annotated[
        int,
        Bound(
            "bytes",
            "The size of all conversations and responses that are kept for an API key; beyond it, what was unused for "
            "longest is dropped.",
        ),
    ] = 256 * 2**20
    max_all_conversation_bytes: Annotated[
        int,
        Bound(
            "bytes",
            "The size of the conversations and responses of all API keys; beyond it, the key with the most loses what "
            "it has not used for longest.",
        ),
    ] = 2**30
    max_collections: Annotated[int, Bound("collections", "Collections of documents of an API key.")] = 1024
    max_collection_documents: Annotated[int, Bound("documents", "Documents of a collection.")] = 100_000
    max_collection_bytes: Annotated[
        int,
        Bound(
            "bytes",
            "The size of all collections of an API key: on disk, or in memory without `--collection-folder`.",
        ),
    ] = 2**30
    max_file_bytes: Annotated[int, Bound("bytes", "The size of a file that is uploaded for a job.")] = 512 * 2**20
    max_key_files: Annotated[int, Bound("files", "Files of an API key, uploaded ones and results.")] = 10_000
    max_key_file_bytes: Annotated[int, Bound("bytes", "The size of all files of an API key.")] = 4 * 2**30
    max_all_file_bytes: Annotated[int, Bound("bytes", "The size of the files of all API keys.")] = 16 * 2**30
    max_batch_lines: Annotated[int, Bound("lines", "Requests of one batch.")] = 50_000
    max_key_batches: Annotated[
        int,
        Bound(
            "batches", "Batches of an API key; beyond them, the oldest that has ended is forgotten, without its files."
        ),
    ] = 1000
    max_key_tunings: Annotated[
        int,
        Bound(
            "tuning jobs",
            "Tuning jobs of an API key; beyond them, the oldest that has ended is forgotten, without its states.",
        ),
    ] = 100
    max_tuning_tokens: Annotated[
        int, Bound("tokens", "Tokens of an example of a tuning job; only the beginning of a longer one is learnt.")
    ] = 1024

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is negative or not finite."""
        check_numbers(self)

    def check(self, limit: str, field: str, value: float) -> None:
        """Raise InvalidRequestError, which names `field`, if `value` is greater than the limit called `limit`."""
        most: int = getattr(self, limit)
        if value > most:
            allowed = f"at most {most} {BOUNDS[limit].unit} ({limit})"
            if limit == "max_prompt_tokens":
                raise PromptTooLongError(field, int(value), most, allowed)
            raise InvalidRequestError(field, value, allowed)


def _list_bounds() -> Mapping[str, Bound]:
    hints = get_type_hints(Limits, include_extras=True)
    return MappingProxyType({one.name: get_args(hints[one.name])[1] for one in fields(Limits)})


BOUNDS = _list_bounds()
"""The unit and the help text of each field of `Limits`, in the order of the fields."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Limits on the number of connections, and on how many seconds a client may take before it is disconnected."""

    max_connections: int = 4096  # fewer if the process may not open twice as many files
    max_per_client: int = 2048  # of one address; those through a Unix socket are not counted
    idle_seconds: float = 75.0  # without a request
    header_seconds: float = 20.0  # for the head of a request, from its first byte on
    body_seconds: float = 30.0  # for its body; each `BODY_RATE` bytes that come give back one that has passed
    stall_seconds: float = 30.0  # in which at least `ANSWER_RATE` bytes a second of the answer must be taken

    def __post_init__(self) -> None:
        """Raise InvalidRequestError if one of the times is negative or not finite."""
        check_numbers(self)


# The web pages that may call the server: its own, and those of listed origins. `auth/admission.py` checks them.

ANY = "*"
"""The origin that allows all pages; only for servers with API keys, which a page must know."""


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Settings of access control. Without keys, only this machine and the server's own pages may use the server."""

    keys: tuple[ApiKey, ...] = ()
    open: bool = False  # without keys: other machines, too
    allowed_hosts: tuple[str, ...] = ()  # names by which clients may call the server
    cors_origins: tuple[str, ...] = ()  # of other web pages, as `https://chat.example`; `*` for all, with keys only

    tls: TlsFiles | None = None  # None = no TLS
    share_cache: bool = False  # let requests of one key use states that those of others left in the cache
    rate: Rate = UNBOUNDED  # of each key that has none of its own, or without keys of each address

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for settings that contradict each other."""
        check_keys(self.keys)
        if ANY in self.cors_origins and not self.keys:
            message = "--cors-origin * needs an API key; without one, any page on the web could use the server"
            raise InvalidRequestError("cors origin", ANY, "origins one by one", message)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All settings of a server that an operator can choose: address, folders, access control, limits and log."""

    host: str = "127.0.0.1"
    port: int = 65530  # 0 = any free one
    unix_socket: Path | None = None  # instead of host and port
    unix_socket_mode: int = 0o660  # of its file: who may connect
    drain_seconds: float = 10.0  # how long running requests may go on after a signal to stop
    model_folder: Path | None = None  # from which admins may load; None = nothing
    admin_folders: tuple[Path, ...] = ()  # in which admins may read and write files, too
    unzip_folders: tuple[Path, ...] = ()  # in which they may unpack archives
    collection_folder: Path | None = None  # for collections of documents; None = they are kept in memory
    embed_model: Path | None = None  # the folder of a model for /api/oai/embeds
    job_folder: Path | None = None  # of files and jobs; None = a temporary one
    tuning_share: float = 0.5  # of the time that tuning a state may take while requests run
    loading: LoadSettings | None = None  # with which models are loaded, for tuning; None = no state can be tuned
    root_path: str = ""  # with which paths may begin, too, as a proxy in front passes them on
    web: bool = True  # serve the web page at /; else that of the routes
    strict: bool = False  # refuse unknown fields of bodies; else they are left out, and the answer lists them
    any_model: bool | None = None  # the default model answers for unknown names, too; None = if it is the only model
    idle_unload_seconds: float | None = None  # after which an unused model is freed; None = never
    exit_on_failure: bool = False  # end when the engine has failed for good, so that the server is started anew
    auth: AuthSettings = field(default_factory=AuthSettings)  # who may come in
    reasoning_format: ReasoningFormat = "auto"  # whether thoughts are apart from content, unless a request says it
    limits: Limits = field(default_factory=Limits)
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    logs: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        """Raise InvalidRequestError if one of the times is negative or not finite."""
        check_numbers(self)
        if not _ROOT_PATH.fullmatch(self.root_path):
            raise InvalidRequestError("root_path", self.root_path, "a path such as /llm")
        if self.tuning_share > 1:
            raise InvalidRequestError("tuning_share", self.tuning_share, "a number from 0 to 1")
