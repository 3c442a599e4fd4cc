"""The body of /props."""

from __future__ import annotations

from typing_extensions import TypedDict


class TemplateTexts(TypedDict):
    record: str
    prefix: str
    sep: str


class Props(TypedDict):
    """What the server runs and how much it allows. `default_generation_settings` are the fields of requests with what
    they mean where they are absent; `limits` and `connections` are options of `rnn-engine serve`."""

    model_path: str
    total_slots: int
    chat_template: TemplateTexts
    default_generation_settings: dict[str, int | float | str | list[str] | dict[str, float] | None]
    limits: dict[str, int]
    connections: dict[str, float]
