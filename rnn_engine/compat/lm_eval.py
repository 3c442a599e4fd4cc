"""A model class for lm-eval (EleutherAI's evaluation harness), which runs tasks on an engine in the same process.

    python -m rnn_engine.compat.lm_eval run --model rnn_engine --model_args model=model.pth,num_slots=16 --tasks ...

takes the options of the command `lm-eval`. In Python, import this module and call `lm_eval.simple_evaluate` with
`model="rnn_engine"`. It needs the extra `lm-eval`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from rnn_engine.chat_template import Conversation
from rnn_engine.llm.llm import LLM
from rnn_engine.llm.prompts import parse_messages
from rnn_engine.llm.results import SamplingParams
from rnn_engine.operations.chat_prompt import prompt_after

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

_MAX_TOKENS = 256  # of a generation whose task sets no limit


@register_model("rnn_engine")
class RnnEngineLM(TemplateLM):
    """An RWKV model for lm-eval: log-likelihoods and generations at full slots, with shared prompts run once."""

    def __init__(
        self,
        model: str = "demo",
        device: str | None = None,
        weights: str | None = None,
        num_slots: int = 8,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        """Load a model as `LLM` does. `num_slots` replaces the batch sizes; "cuda:0" is the fastest device here."""
        del batch_size, max_batch_size
        super().__init__()
        chosen = "auto" if device is None or device.startswith("cuda") else device
        self._llm = LLM(model, device=chosen, weights=weights, num_slots=num_slots)
        self._chat_stops: tuple[str, ...] | None = None  # None until a chat template was asked for

    @property
    def eot_token_id(self) -> int:
        return 0

    @property
    def tokenizer_name(self) -> str:
        info = self._llm.engine.info
        return f"{info.model}, {info.tokenizer}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        del add_special_tokens  # none are ever added
        return self._llm.tokenize(string)

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, object]], add_generation_prompt: bool = True
    ) -> str:
        conversation = Conversation(parse_messages(chat_history), answers=add_generation_prompt)
        prompt = prompt_after(self._llm.engine, None, conversation)
        self._chat_stops = prompt.stop
        return prompt.text

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[object, list[int], list[int]]], disable_tqdm: bool = False, **_: object
    ) -> list[tuple[float, bool]]:
        """Return each continuation's log-probability, and True if it is what greedy sampling would have given."""
        del disable_tqdm
        scores = self._llm.score([(context, continuation) for _, context, continuation in requests], alternatives=1)
        return [(score.total, all(info.token == info.top[0][0] for info in score.tokens)) for score in scores]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        del disable_tqdm
        return [score.total for score in self._llm.logprobs([request.args[0] for request in requests])]

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the generated texts; answers of chats without the white space at their beginning."""
        params = [_sampling(request.args[1], self._chat_stops or ()) for request in requests]
        prompts = [request.args[0] for request in requests]
        done = self._llm.generate(prompts, params, progress=not disable_tqdm)
        return [each.text if self._chat_stops is None else each.text.lstrip() for each in done]


def _sampling(options: Mapping[str, Any], stops: Sequence[str]) -> SamplingParams:
    """Return the parameters for a task's options, such as `until`. A text also ends before any of `stops`."""
    until = options.get("until", ())
    temperature = float(options.get("temperature", 1.0)) if options.get("do_sample") else 0.0
    return SamplingParams(
        temperature=temperature,
        top_p=float(options.get("top_p", 1.0)),
        top_k=int(options.get("top_k", 0)),
        max_tokens=int(options.get("max_gen_toks", _MAX_TOKENS)),
        stop=(*([until] if isinstance(until, str) else until), *stops),
    )


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
