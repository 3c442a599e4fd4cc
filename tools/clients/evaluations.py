"""Checks of programs that evaluate or measure a model: a function for each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.clients.checks import FRANCE_QUESTION, MODEL, WEATHER_QUESTION, Checks, root_of, weather

_REQUESTS = 6  # of aiperf
_ITEMS = 8  # of a task of lm-eval
_TOKENIZER = Path(__file__).parents[2] / "rnn_engine" / "demo" / "tokenizer.json"


def aiperf() -> Checks:
    """Return the check of a benchmark of streamed chats, with the demo model's tokenizer."""

    def profile(url: str) -> str:
        with TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copy(_TOKENIZER, folder)
            (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
            (folder / "questions.jsonl").write_text(json.dumps({"text": FRANCE_QUESTION}))
            command = (
                f"{Path(sys.executable).with_name('aiperf')} profile --model {MODEL} --url {root_of(url)} "
                f"--endpoint-type chat --streaming --request-count {_REQUESTS} --tokenizer {folder} --ui none "
                f"--input-file {folder}/questions.jsonl --custom-dataset-type single_turn "
                f"--artifact-dir {folder}/out --use-server-token-count"
            )
            subprocess.run(command.split(), check=True, stdout=sys.stderr)
            found = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
        assert (found["request_count"]["avg"], found["error_summary"]) == (_REQUESTS, []), found
        return f"{_REQUESTS} requests, {found['time_to_first_token']['avg']:.0f} ms to the first token"

    return {"`profile` of streamed chats": profile}


def inspect_ai() -> Checks:
    """Return the check of an evaluation whose samples need a plain answer and a tool's result."""
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    @tool(name="weather")  # type: ignore[untyped-decorator]
    def weather_tool() -> Any:  # noqa: ANN401
        async def execute(city: str) -> str:
            """Return the weather in a city.

            Args:
                city: The city.
            """
            return weather(city)

        return execute

    def accuracy(url: str, provider: str) -> str:
        samples = [Sample(FRANCE_QUESTION, target="Paris"), Sample(WEATHER_QUESTION, target="22")]
        solver = [use_tools(weather_tool()), generate()]
        task = inspect_ai.Task(samples, solver=solver, scorer=includes(), config=GenerateConfig(temperature=0))
        model = get_model(f"{provider}/{MODEL}", base_url=url, api_key="-", memoize=False)
        with TemporaryDirectory() as folder:
            [log] = inspect_ai.eval(task, model, log_dir=folder, display="none")
            assert log.results.scores[0].metrics["accuracy"].value == 1, log
            return str(log.samples[-1].output.completion)

    return {f"`eval`, `{each}/`": partial(accuracy, provider=each) for each in ("openai", "openai-api/served")}


def lm_eval() -> Checks:
    """Return the checks of lm-eval: `local-chat-completions` generates, and `local-completions` scores texts.

    Texts are scored with the server's own tokenizer. The tasks are defined in this folder.
    """

    def run(model: str, model_args: str, task: str, metric: str, *options: str) -> str:
        """Run lm-eval on some items of a task. Raises CalledProcessError if it fails."""
        chosen = ["--model", model, "--model_args", model_args, "--tasks", task]
        with TemporaryDirectory() as folder:
            paths = ["--include_path", str(Path(__file__).parent), "--output_path", folder]
            command = [sys.executable, "-m", "lm_eval", "run", *chosen, *paths, "--limit", str(_ITEMS), *options]
            subprocess.run(command, check=True, stdout=sys.stderr)
            [results] = Path(folder).rglob("results_*.json")
            found = json.loads(results.read_text())["results"][task]
        return f"{found['sample_len']} items, {metric} {found[f'{metric},none']}"

    served = f"model={MODEL},num_concurrent=2,base_url="

    def generates(url: str) -> str:
        model_args = f"{served}{url}/chat/completions"
        return run("local-chat-completions", model_args, "rnn_engine_chat", "exact_match", "--apply_chat_template")

    def scores(url: str) -> str:
        model_args = f"{served}{url}/completions,tokenizer_backend=remote"
        return run("local-completions", model_args, "rnn_engine_choices", "acc")

    return {"`local-chat-completions`": generates, "`local-completions`, remote tokenizer": scores}
