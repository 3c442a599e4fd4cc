"""Commands print and read on consoles whose encoding lacks characters, such as redirected output on Windows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.models import random_model, save_safetensors, tiny_shape

RUN = """
import json, sys
from rnn_engine.cli import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments, prog_name="rnn-engine")
    except SystemExit as end:
        print("code", end.code, flush=True)
"""


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])  # one that lacks nearly all, and one that lacks some
def test_what_a_console_lacks_is_replaced(encoding: str, tmp_path: Path) -> None:
    model = tmp_path / "模型é.safetensors"
    save_safetensors(random_model(replace(tiny_shape(), vocab_size=65536), seed=1), model, "f16")
    said = [
        {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": "模型"}]} for word in "你好吗"
    ]
    (tmp_path / "数据é.jsonl").write_text("\n".join(map(json.dumps, said)))
    commands: list[list[str]] = [
        ["generate", str(model), "a", "--device", "cpu", "--temperature", "0", "--max-tokens", "20"],
        ["inspect", str(model)],
        ["convert", str(model), str(tmp_path / "型é.pth")],
        ["tune-state", str(model), str(tmp_path / "数据é.jsonl"), "-o", str(tmp_path / "s.pth"), "--steps", "1"],
        ["chat", str(model), "--device", "cpu", "--max-tokens", "5"],
    ]
    commands[3] += ["--device", "cpu", "--rate", "0.01"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", RUN, json.dumps(commands)]
    done = subprocess.run(command, env=environment, input="你好é\n".encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert done.stdout.decode(encoding, "replace").count("code 0") == len(commands), done
    assert b"Traceback" not in done.stderr
