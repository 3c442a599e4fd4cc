"""`rnn-engine` with a fake engine, as a program: its first answer is held after three tokens until it is cancelled.

Each request's prompt is appended to the file that the environment variable PROMPTS names, as a line of JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from rnn_engine.cli import main, session
from rnn_engine.cli.session import EngineChoice
from rnn_engine.interface import EngineLike
from rnn_engine.requests import GenerateRequest
from tests.support.fake_engine import FakeEngine


def _reply(request: GenerateRequest) -> str:
    with Path(os.environ["PROMPTS"]).open("a") as prompts:
        prompts.write(json.dumps(_ENGINE.detokenize(request.prompt).decode()) + "\n")
    _ENGINE.hold = 3 if len(_ENGINE.requests) == 1 else None
    return "Yes it is."


async def _load(_choice: EngineChoice) -> EngineLike:
    return _ENGINE


_ENGINE = FakeEngine(reply=_reply)

if __name__ == "__main__":
    session.load_engine = _load  # type: ignore[assignment]
    main()
