"""The operations of a soak's clients, with their relative frequencies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from tools.live_server.caller import Caller
from tools.soak import generation, misbehaviour, states

Run: TypeAlias = Callable[[Caller], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of operation of a client. `weight` is its frequency relative to the others."""

    name: str
    weight: float
    run: Run
    timed: bool = True  # False if the client itself decides how long it takes


def make_operations() -> tuple[Operation, ...]:
    """Return all operations. Some remember what earlier calls left on the server, so use them with one server only."""
    conversations, named = generation.Conversations(), states.NamedConversations()
    greedy = generation.GreedyAnswers()
    return (
        Operation("chat", 16, generation.chat),
        Operation("chat, streamed", 16, generation.chat_stream),
        Operation("conversation that goes on", 12, conversations.turn),
        Operation("conversation under a name", 6, named.turn),
        Operation("known answer", 8, greedy.ask),
        Operation("long common prefix", 8, generation.common_prefix),
        Operation("several prompts and answers", 3, generation.many),
        Operation("choices", 4, generation.choices),
        Operation("embeddings", 4, generation.embeddings),
        Operation("tokens", 4, generation.tokens),
        Operation("look at the server", 4, generation.look),
        Operation("drop the cache", 0.05, generation.drop_cache),
        Operation("life of a named state", 4, states.life),
        Operation("state left to its lease", 1, states.leave_behind),
        Operation("bad request", 6, misbehaviour.bad_request),
        Operation("bytes that are no request", 1, misbehaviour.nonsense),
        Operation("stream, then cancel", 8, misbehaviour.cancel, timed=False),
        Operation("disconnect before the answer", 4, misbehaviour.disconnect, timed=False),
        Operation("stalled reader", 1, misbehaviour.stall, timed=False),
    )
