"""Checks of aiperf against the server: a benchmark of streamed chats, with the demo model's tokenizer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.clients.questions import FRANCE_QUESTION, MODEL, Checks, root_of

_REQUESTS = 6
_TOKENIZER = Path(__file__).parents[2] / "rnn_engine" / "demo" / "tokenizer.json"


def _profile(url: str) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(_TOKENIZER, folder)
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        (folder / "questions.jsonl").write_text(json.dumps({"text": FRANCE_QUESTION}))
        options = f"--model {MODEL} --url {root_of(url)} --endpoint-type chat --streaming --request-count {_REQUESTS}"
        files = f"--tokenizer {folder} --input-file {folder}/questions.jsonl --artifact-dir {folder}/out"
        command = [str(Path(sys.executable).with_name("aiperf")), "profile", *options.split(), *files.split()]
        more = "--custom-dataset-type single_turn --use-server-token-count --ui none"
        subprocess.run([*command, *more.split()], check=True, stdout=sys.stderr)
        found = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
    assert (found["request_count"]["avg"], found["error_summary"]) == (_REQUESTS, []), found
    return f"{_REQUESTS} requests, {found['time_to_first_token']['avg']:.0f} ms to the first token"


CHECKS: Checks = {"`profile` of streamed chats": _profile}
