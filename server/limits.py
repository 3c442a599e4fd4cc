"""How much one request may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated, get_args, get_type_hints

from rnn_engine.errors import InvalidRequestError, PromptTooLongError


@dataclass(frozen=True, slots=True)
class Bound:
    """What one of `Limits` counts: the unit of its value, and its help."""

    unit: str
    help: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may ask for, how long it may take, and how many a client may have.

    What is beyond is refused, by name.
    A field that is added here is an option of `rnn-engine serve`, and listed by `/props`, under the same name.
    """

    max_body_bytes: Annotated[int, Bound("bytes", "Of a JSON body.")] = 64 * 2**20
    max_upload_bytes: Annotated[int, Bound("bytes", "Of a state's file.")] = 256 * 2**20
    max_unzip_bytes: Annotated[int, Bound("bytes", "Of all files in an archive that an admin unpacks.")] = 16 * 2**30
    max_unzip_files: Annotated[int, Bound("files", "In an archive that an admin unpacks.")] = 10_000
    max_held_bytes: Annotated[
        int,
        Bound(
            "bytes",
            "Of all bodies that are held at a time, what is read from them, and copies of states for exports; one body "
            "may take half.",
        ),
    ] = 512 * 2**20
    max_messages: Annotated[int, Bound("messages", "Messages of a chat.")] = 8192
    max_text_bytes: Annotated[
        int, Bound("bytes", "Of all texts of a request as UTF-8; of a chat, the text that the template makes.")
    ] = 4 * 2**20
    max_prompt_tokens: Annotated[
        int,
        Bound("tokens", "Tokens of all prompts of a request, each counted once an answer; a context once a choice."),
    ] = 2**20
    max_answers: Annotated[int, Bound("answers", "Answers to a request: prompts times `n` or `best_of`.")] = 2048
    max_answer_tokens: Annotated[int, Bound("tokens", "Answers times `max_tokens`.")] = 2**20
    max_logprob_entries: Annotated[
        int, Bound("entries", "Tokens with log-probabilities in an answer, times 1 and their alternatives.")
    ] = 2**19
    max_choices: Annotated[int, Bound("choices", "Choices to be scored.")] = 2048
    max_inputs: Annotated[int, Bound("inputs", "Inputs to be embedded, texts to be ranked or made into tokens.")] = 2048
    max_vector_numbers: Annotated[int, Bound("numbers", "Numbers of all vectors or states of an answer.")] = 2**23
    max_stop_strings: Annotated[
        int, Bound("strings", "Strings in `stop`; tokens in `stop_token_ids`; texts in `dry_sequence_breakers`.")
    ] = 64
    max_stop_bytes: Annotated[int, Bound("bytes", "Of all strings in `stop`, and of all in `bad_words`.")] = 4096
    max_request_seconds: Annotated[
        int, Bound("seconds", "For a request in all; also what `timeout` is at most, and where it is absent.")
    ] = 3600
    max_queued: Annotated[
        int, Bound("requests", "That wait for a slot; beyond them as many of clients with less than their share.")
    ] = 64
    max_queue_seconds: Annotated[int, Bound("seconds", "For a request to wait for a slot; then 429.")] = 300
    max_load_seconds: Annotated[int, Bound("seconds", "For a request to wait until its model is loaded; then 503.")] = (
        300
    )
    max_client_requests: Annotated[
        int, Bound("requests", "Running at a time, of one API key, or without keys of one address; then 429.")
    ] = 1024
    max_mixed_states: Annotated[int, Bound("states", "States that a request mixes, each in a slot of its own.")] = 8
    max_grammar_bytes: Annotated[int, Bound("bytes", "Of a grammar, a schema or a list of choices.")] = 2**18
    max_grammar_seconds: Annotated[
        int, Bound("seconds", "Of the processor's time, for compiling one grammar; for a `bnf_schema` 0.25.")
    ] = 2
    max_bias_entries: Annotated[int, Bound("entries", "Tokens in `logit_bias`, and words in `bad_words`.")] = 4096

    max_responses: Annotated[
        int, Bound("responses", "That are kept for `previous_response_id`; the oldest of whoever has most give way.")
    ] = 4096
    max_response_bytes: Annotated[
        int, Bound("bytes", "Of memory for all kept responses, each with its whole conversation.")
    ] = 256 * 2**20
    max_conversations: Annotated[
        int, Bound("conversations", "That are kept for an API key; the one that was unused for longest gives way.")
    ] = 1024
    max_conversation_bytes: Annotated[
        int, Bound("bytes", "Of memory for all conversations that are kept for an API key.")
    ] = 64 * 2**20
    max_response_seconds: Annotated[int, Bound("seconds", "For which a response is kept.")] = 24 * 3600

    def check(self, limit: str, field: str, value: float) -> None:
        """Raise InvalidRequestError, which names `field`, where `value` is beyond the limit of that name."""
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
"""What each field of `Limits` counts, in their order."""
