"""Tune a state or a LoRA for `rnn-engine tune-state` and `tune-lora`: show the progress, and compare with the start."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from rnn_engine.backward import TrainingDocument
from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.cli.options import command_to_resume
from rnn_engine.cli.reports import write_page
from rnn_engine.cli.tuning_options import DataOptions, RunOptions, StateOptions
from rnn_engine.errors import InvalidRequestError, RnnEngineError
from rnn_engine.files import delete_file, delete_unfinished
from rnn_engine.llm.llm import LLM
from rnn_engine.llm.progress import TuningBar, progress_bar, tuning_bar
from rnn_engine.llm.results import SamplingParams
from rnn_engine.llm.state import State
from rnn_engine.llm.tuner import Tuner
from rnn_engine.loading.settings import LoadSettings, LoraSettings
from rnn_engine.model import LoraChoice
from rnn_engine.model.lora import is_peft_folder
from rnn_engine.training.data import DataReport, Oddities, TextMaker
from rnn_engine.training.tuner import Judged, Progress, RateTried, TunerSettings, Updated

_NUM_SAMPLES: Final = 3
_SAMPLE_TOKENS: Final = 64
_TEXT_PROMPT: Final = 16  # tokens of a plain text that a sample continues
_MOST_CHARACTERS: Final = 1 << 16
_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it


@dataclass(frozen=True, slots=True)
class Sample:
    """A question of the held-out examples, and the model's answers before and after the run."""

    question: str
    wanted: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class TuningReport:
    """What a run of `rnn-engine tune-state` or `tune-lora` has done, for its table and its page."""

    what: str
    model: str
    data: str
    output: str
    rate: float
    seconds: float  # of this process
    report: DataReport
    progress: Progress
    samples: Sequence[Sample]

    @property
    def title(self) -> str:
        return f"the initial {self.what} of" if self.what == "state" else f"a {self.what} for"

    @property
    def before(self) -> float:
        return self.progress.judged[0].held_out_loss

    @property
    def after(self) -> float:
        return min(judged.held_out_loss for judged in self.progress.judged)


def tune(
    model: Path,
    data: Path,
    output: Path,
    loading: LoadSettings,
    run: RunOptions,
    examples: DataOptions,
    what: StateOptions | LoraSettings,
    *,
    resume: bool,
    report: Path | None,
) -> None:
    """Tune `what`, write it to `output`, and print how it compares with its start."""
    checkpoint = output.with_name(f"{output.name}.checkpoint")
    if checkpoint.exists() and not resume:
        raise click.UsageError(f"{checkpoint} is that of a run that has not ended; go on with --resume, or delete it")
    if resume and not checkpoint.exists():
        raise click.UsageError(f"--resume goes on from {checkpoint}, which does not exist")
    lora = what if isinstance(what, LoraSettings) else None
    state = what if isinstance(what, StateOptions) else StateOptions()
    with progress_bar("opening the model") as progress:
        tuner = Tuner(
            data,
            model,
            TunerSettings(run.epochs, run.steps, run.batch_size, run.rate, run.warm_up, run.patience or None, run.seed),
            held_out=examples.held_out,
            bad_lines=examples.bad_lines,
            long_texts=examples.long_texts,
            init=state.init,
            init_prompt=state.init_prompt,
            train_shifts=state.train_shifts,
            lora=lora,
            max_tokens=examples.max_tokens,
            max_documents=run.max_documents,
            checkpoint=checkpoint,
            checkpoint_seconds=run.checkpoint_seconds,
            resume=resume,
            any_model=state.any_model,
            device=loading.device,
            weights=loading.weights,
            device_memory=loading.device_memory,
            tokenizer=loading.tokenizer,
            chat_template=loading.chat_template,
            loras=loading.loras,
            progress=progress,
        )
    begun = time.monotonic()
    with tuner:
        tuner.form_of(output)  # raises now, and not after the run
        _echo_report(tuner)
        try:
            with tuning_bar() as bar:
                _run(tuner, bar)
        except KeyboardInterrupt:
            click.echo(f"\nstopped; go on with: {command_to_resume()}", err=True)
            sys.exit(_INTERRUPTED)
        tuner.save(output)
        rate, seconds, reached = tuner.rate, time.monotonic() - begun, tuner.progress
        states = tuner.start, tuner.best
    assert rate is not None
    samples: list[Sample] = []
    try:
        samples = _make_samples(model, loading, tuner.maker, tuner.data.held_out, states, lora, output)
    except RnnEngineError as error:
        click.echo(f"there are no sample answers: {error}", err=True)
    name = "state" if lora is None else "LoRA"
    made = TuningReport(name, model.name, data.name, output.name, rate, seconds, tuner.data.report, reached, samples)
    _print(made)
    if report is not None:
        write_page(report, "tuning_report.html", report=made, curve=_Curve.of(made.progress))
    delete_file(checkpoint)
    delete_unfinished(checkpoint)
    click.echo(f"the {name} is in {output}{'' if lora is None else _uses(lora, output)}")


def _uses(lora: LoraSettings, output: Path) -> str:
    """Return how to use a LoRA's file, for a message."""
    rank, alpha = lora.result.rank, lora.result.alpha
    file = f"{output}:{alpha:g}" if output.suffix == ".pth" else str(output)
    if lora.train_vectors or is_peft_folder(output):
        return f"; use it with --lora {file}"
    room = f"--max-loras 4{f' --max-lora-rank {rank}' if rank > LoadSettings().max_lora_rank else ''}"
    merged = "" if lora.train_state else f"--lora {file}, or beside others with "
    return f"; use it with {merged}{room} --state {file}"


def _echo_report(tuner: Tuner) -> None:
    """Print what is in the data, and what is odd in it."""
    for name, report in (("examples", tuner.data.report), ("held-out examples", tuner.data.held_out_report)):
        if report is not None:
            tokens = f"{report.num_tokens:,} tokens, of which {report.num_learnt:,} are learnt"
            click.echo(f"{report.num_records:,} {name}: {tokens}", err=True)
            for what, odd in oddities(report):
                click.echo(f"  {what}: {odd}", err=True)
    click.echo(f"learnt from {len(tuner.data.training):,}, judged by {len(tuner.data.held_out):,} documents", err=True)


def oddities(report: DataReport) -> list[tuple[str, Oddities]]:
    """Return what is odd in a data file, in words."""
    kinds = [
        ("can't be used", report.bad),
        ("too long", report.long),
        ("answers without a text, which are not learnt", report.empty),
        ("without anything to learn", report.idle),
        ("come twice", report.duplicates),
    ]
    return [(words, odd) for words, odd in kinds if odd.count]


def _run(tuner: Tuner, bar: TuningBar) -> None:
    held_out = ""
    for event in tuner.events():
        match event:
            case Updated():
                what = "training" if event.trial is None else f"trial of the rate {event.rate:.2g}"
                bar.update(what, event.step, event.num_steps, f"loss {event.loss:.4f}{held_out}", event.num_tokens)
            case RateTried():
                bar.print(f"rate {event.rate:.2g}: held-out loss {event.held_out_loss:.4f}")
            case Judged():
                held_out = f", held-out {event.held_out_loss:.4f}"
                bar.print(f"update {event.step}: held-out loss {event.held_out_loss:.4f}{' *' * event.is_best}")


# Samples: the model answers a few held-out questions.


def _make_samples(
    model: Path,
    loading: LoadSettings,
    maker: TextMaker,
    documents: Sequence[TrainingDocument],
    states: Sequence[State],
    lora: LoraSettings | None,
    output: Path,
) -> list[Sample]:
    """Return the model's answers to the first questions of `documents` from both states, which may have a `lora`.

    A LoRA with vectors is merged from `output`, and then there is no second state.
    """
    chosen = [_divide_document(document) for document in documents[:_NUM_SAMPLES]]
    prompts = [prompt for prompt, _ in chosen]
    stop, stop_tokens = _ends(maker)
    params = SamplingParams(temperature=0.0, max_tokens=_SAMPLE_TOKENS, stop=stop, stop_token_ids=(0, *stop_tokens))
    runs: list[tuple[Sequence[State | None], Sequence[LoraChoice]]] = [(states, loading.loras)]
    if lora is not None and lora.train_vectors:
        merged = LoraChoice(output, lora.result.alpha)
        runs = [(states[:1], loading.loras), ([None], [*loading.loras, merged])]
    answers = []
    for starts, loras in runs:
        with LLM(
            model,
            device=loading.device,
            weights=loading.weights,
            device_memory=loading.device_memory,
            num_slots=_NUM_SAMPLES,
            tokenizer=loading.tokenizer,
            chat_template=loading.chat_template,
            loras=loras,
            max_loras=0 if lora is None else 1,
            max_lora_rank=1 if lora is None else lora.result.rank,
            cache=None,
        ) as llm:
            answers += [llm.generate(prompts, params, state=state, progress=False) for state in starts]
    before, after = answers
    return [
        Sample(_text(maker, prompt), _text(maker, answer), one.text.strip(), two.text.strip())
        for (prompt, answer), one, two in zip(chosen, before, after, strict=True)
    ]


def _divide_document(document: TrainingDocument) -> tuple[list[int], list[int]]:
    """Return the tokens before the first answer of a document, and the answer's."""
    learnt = document.weights > 0
    start = int(np.argmax(learnt))
    rest = np.flatnonzero(~learnt[start:])
    end = start + int(rest[0]) if len(rest) else len(learnt)
    if start == 1:  # a text without a prompt
        start = min(_TEXT_PROMPT, max(1, end // 2))
    return document.tokens[:start].tolist(), document.tokens[start:end].tolist()


def _ends(maker: TextMaker) -> tuple[tuple[str, ...], list[int]]:
    """Return the texts and the tokens that end an answer by the chat template."""
    try:
        rendered = maker.template.render(Conversation([ChatMessage(Role.USER, "a")]), _MOST_CHARACTERS)
    except InvalidRequestError:  # the template wants more than a message of the user
        return (), []
    special = maker.tokenizer.special_tokens
    return rendered.stop, [special[text] for text in rendered.stop_tokens if text in special]


def _text(maker: TextMaker, tokens: Sequence[int]) -> str:
    return maker.detokenize(tokens).decode(errors="replace").strip()


# What is shown at the end: tables, and a page with the curve of the losses.


def _print(report: TuningReport) -> None:
    console = Console()
    table = Table("", "before", "after", box=None)
    table.add_row("held-out loss", f"{report.before:.4f}", f"{report.after:.4f}")
    console.print(table)
    for sample in report.samples:
        answers = Table("", sample.question, box=None)
        for name, text in (("before", sample.before), ("after", sample.after), ("wanted", sample.wanted)):
            answers.add_row(name, text)
        console.print(answers)


@dataclass(frozen=True, slots=True)
class _Curve:
    """The points of the losses, as SVG has them, in a picture of 100 by 50, and the numbers at the axes."""

    training: str
    held_out: str
    most: float
    num_steps: int

    @classmethod
    def of(cls, progress: Progress) -> _Curve:
        losses = [(step, loss) for step, (loss, _, _) in enumerate(progress.updates) if np.isfinite(loss)]
        judged = [(each.step, each.held_out_loss) for each in progress.judged if np.isfinite(each.held_out_loss)]
        most = max(loss for _, loss in (*losses, *judged))
        num_steps = max(1, *(step for step, _ in (*losses, *judged)))

        def points(values: Sequence[tuple[int, float]]) -> str:
            return " ".join(f"{100 * step / num_steps:.2f},{50 * (1 - loss / most):.2f}" for step, loss in values)

        return cls(points(losses), points(judged), most, num_steps)
