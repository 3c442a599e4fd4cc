"""Programs that use `LLM`: their imports, their end, and what happens after a fork."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import run_program

_OPEN = "from rnn_engine import LLM, SamplingParams\nllm = LLM(device='cpu', num_slots=2)\n"


def test_the_package_imports_nothing_until_a_name_is_used(tmp_path: Path) -> None:
    script = (
        "import sys, rnn_engine\nprint({'numpy', 'wgpu', 'aiohttp', 'pydantic', 'asyncio'} & set(sys.modules))\n"
        "from rnn_engine import LLM\nprint({'aiohttp', 'rich', 'prometheus_client'} & set(sys.modules))"
    )
    assert run_program(script, tmp_path) == "set()\nset()\n"


def test_a_program_that_does_not_close_its_model_ends(tmp_path: Path) -> None:
    script = _OPEN + "print(llm.generate('Hello', SamplingParams(max_tokens=1)).completion_tokens)"
    assert run_program(script, tmp_path) == "1\n"


def test_a_program_ends_while_another_thread_generates(tmp_path: Path) -> None:
    script = _OPEN + (
        "import threading\n"
        "stream = llm.stream('Hello', SamplingParams(max_tokens=10**6, stop_token_ids=()))\n"
        "print(next(stream) != '')\n"
        "def read():\n"
        "    try:\n"
        "        list(stream)\n"
        "    except Exception:\n"
        "        pass  # the program ends\n"
        "threading.Thread(target=read, daemon=True).start()\n"
        "print(llm.generate('Hello', SamplingParams(max_tokens=1)).completion_tokens)\n"
    )
    assert run_program(script, tmp_path) == "True\n1\n"


def test_a_forked_process_is_told_to_make_its_own(tmp_path: Path) -> None:
    script = _OPEN + (
        "import os, sys\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        llm.generate('Hello')\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error, flush=True)\n"
        "    sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
        "print(len(llm.generate(['Hello'] * 2, SamplingParams(max_tokens=1))))\n"
    )
    said = run_program(script, tmp_path).splitlines()
    assert said[0].startswith("EngineClosedError this LLM belongs to process ")
    assert said[1:] == ["7", "2"]
