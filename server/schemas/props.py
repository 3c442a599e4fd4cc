"""The body of /props."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from typing_extensions import TypedDict


class Props(TypedDict):
    """What the server runs and how much it allows. `chat_template` is the text of a Jinja template, or the texts around
    the messages (`record`, `prefix`, `sep`). `default_generation_settings` are the fields of requests with what they
    mean where they are absent, and `n_ctx`, the most tokens of a prompt, since a state has no context of a fixed
    length. `limits` and `connections` are options of `rnn-engine serve`."""

    model_path: str
    model_alias: str
    build_info: str
    modalities: dict[str, bool]
    bos_token: str
    eos_token: str
    is_sleeping: Literal[False]
    total_slots: int
    chat_template: Mapping[str, str] | str
    default_generation_settings: dict[str, int | float | str | list[str] | dict[str, float] | None]
    limits: dict[str, int]
    connections: dict[str, float]
