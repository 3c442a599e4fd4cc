"""The body of /props."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import TypedDict


class Props(TypedDict):
    """What the server runs and how much it allows. `chat_template` is the text of a Jinja template, or the texts around
    the messages (`record`, `prefix`, `sep`). `default_generation_settings` are the fields of requests with what they
    mean where they are absent; `limits` and `connections` are options of `rnn-engine serve`."""

    model_path: str
    total_slots: int
    chat_template: Mapping[str, str] | str
    default_generation_settings: dict[str, int | float | str | list[str] | dict[str, float] | None]
    limits: dict[str, int]
    connections: dict[str, float]
