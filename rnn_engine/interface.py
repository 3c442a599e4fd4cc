"""What the server, the command line and the tasks need of an engine, be it in this process or somewhere else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from rnn_engine.requests import EngineInfo, EngineStats, Event, GenerateRequest


class EngineLike(Protocol):
    """The few methods through which the server and the CLI reach a local or a remote engine."""

    @property
    def info(self) -> EngineInfo: ...

    def stats(self) -> EngineStats: ...

    def tokenize(self, text: str) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int]) -> bytes: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Run `request`: `Started`, perhaps `PromptScored`, `TextDelta`s, `Finished`.

        Leaving the iteration early (`aclose`, cancellation) frees the slot within one step.
        Raises InvalidRequestError at once, OverloadedError or EngineClosedError before the first event,
        and StepError where the device fails.
        """
        ...

    async def close(self) -> None:
        """Stop taking requests, end the running ones with EngineClosedError, and free the device."""
        ...
