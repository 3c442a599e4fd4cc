"""`python -m tools.bench.load.modelled`: serve an engine whose steps take a modelled time and compute nothing.

Its answers repeat one word. Everything except the model is real: HTTP, chat template, scheduler, cache. It prints its
address as `rnn-engine serve` does.
"""

from __future__ import annotations

import asyncio
import zlib

import click

from tools.bench.modelled import VOCAB, Hardware, make_engine, served
from tools.bench.runners import WordTokenizer

_CLIENTS = 1000


class ChatTokenizer(WordTokenizer):
    """A tokenizer of words. An answer that a client sends back in its next prompt is encoded as the same tokens."""

    def encode(self, text: str, /) -> list[int]:
        return [self._token(word.encode()) for word in text.split()]

    def _token(self, word: bytes) -> int:
        own = b" " + word
        return self._words.index(own) if own in self._words else zlib.crc32(word) % self.size


@click.command()
@click.option("--port", type=int, default=0, show_default=True, help="The port; 0 = a free one.")
@click.option("--slots", default=64, show_default=True)
@click.option("--step", default=0.008, show_default=True, help="Seconds of a step.")
@click.option("--token", default=0.0001, show_default=True, help="Seconds that each token adds to a step.")
@click.option("--states", default=1000, show_default=True, help="The most states that the cache keeps; 0 = no cache.")
def main(port: int, slots: int, step: float, token: float, states: int) -> None:
    """Serve until the process is ended."""
    asyncio.run(_serve(Hardware(slots=slots, step=step, token=token, cached_states=states), port))


async def _serve(hardware: Hardware, port: int) -> None:
    async with served(make_engine(hardware, ChatTokenizer(VOCAB)), _CLIENTS, port) as bound:
        print(f"address  http://127.0.0.1:{bound}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
