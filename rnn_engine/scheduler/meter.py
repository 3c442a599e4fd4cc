"""Measures how long steps take, decides by that what runs in them and how they are submitted, and updates counters."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.queue import DECODE, TAKE_IN, DraftDemand, TokenDemand, running_mean
from rnn_engine.telemetry import EngineCounters, Timing

# Measured durations of steps decide how many tokens the device draws in one submit, and if a step is submitted before
# the previous one was collected.

DRAW_SECONDS = 0.02  # that the draws of two submits may take: a new request or a reader waits no longer
_MARGIN = 4.0  # seconds of work that the device is given for each second of the host's part of a submit
_LEAST_WAIT = 0.1  # share of a step's time; if the host waited less, the device may have been done before
SHORT_STEP = 0.02  # seconds; the time between two longer steps hardly matters


class StepTimes:
    """The measurements of one step: its numbers of tokens and sequences, and when it was submitted and collected."""

    def __init__(
        self,
        begun: float,
        demands: Sequence[TokenDemand],
        counts: Sequence[int],
        num_steps: int,
        *,
        is_background: bool = False,
    ) -> None:
        """Describe a step that begins at the time `begun`. `demands` are what its sequences asked for.

        `counts` are the numbers of tokens that they run. On the device the step consists of `num_steps` steps that run
        one after another; all except the first run tokens that the device has drawn. `is_background` if all sequences
        are in the background.
        """
        self.is_background = is_background
        self.begun = begun
        self.submitted = begun
        self.last = 0.0  # when the step before was collected; like the next, known once this step is collected
        self.collected = 0.0
        self.num_steps = num_steps
        self.num_runs = len(counts)
        self.tokens = sum(counts)
        self.drawn_tokens = demands.count(DECODE)  # by sequences that have drawn one before
        self.decode_tokens = self.drawn_tokens + demands.count(TAKE_IN)
        if self.tokens > len(demands):
            drafts = [count for demand, count in zip(demands, counts, strict=True) if isinstance(demand, DraftDemand)]
            self.drawn_tokens += len(drafts)
            self.decode_tokens += sum(drafts)

    @property
    def seconds(self) -> float:
        """The duration of the step in seconds, counted only from when the previous step was collected."""
        return self.collected - max(self.begun, self.last)

    def cost(self, now: float) -> float:
        """Return the seconds that the step has cost, if its outcome has been processed at the time `now`.

        The host's work counts, too, unless the device had another step meanwhile. A runner may do all its work when a
        step is submitted.
        """
        return max(self.seconds, self.submitted - self.begun) if self.was_ahead else now - self.begun

    @property
    def was_ahead(self) -> bool:
        return self.begun < self.last

    @property
    def is_plain(self) -> bool:
        """True if each sequence of the step runs exactly one token, which was drawn: no prompt, no draft."""
        return self.is_decode and self.tokens == self.num_runs

    @property
    def is_decode(self) -> bool:
        return self.decode_tokens == self.tokens


class StepSeconds:
    """Running means of the durations of steps, and the decisions about submitting steps that follow from them."""

    def __init__(self) -> None:
        self._last_collect = 0.0
        self._is_late = False  # the device may have been done with the last step before the host waited for it
        self._decode = dict[bool, float]()  # of a step that runs one token of each sequence; True = all in background
        self._prompt_token: float | None = None  # of a token in the other steps
        self._host: float | None = None  # of the host between two steps, while the device had one to run

    def note(self, times: StepTimes, asked: float, now: float) -> None:
        """Update the means with a step that the host began to wait for at `asked` and that ended at `now`."""
        times.last, times.collected = self._last_collect, now
        if times.was_ahead:
            self._host = running_mean(self._host, asked - times.last)
        self._last_collect = now
        seconds = times.seconds
        is_most = is_late = now - asked < _LEAST_WAIT * seconds
        if times.was_ahead and self._is_late:  # the device may have begun with it before the last one was collected
            seconds, is_most = now - times.begun, True
        self._is_late = is_late
        if times.is_plain:
            before = self._decode.get(times.is_background)
            self._decode[times.is_background] = _mean(before, seconds / times.num_steps, is_most=is_most)
        elif not times.is_decode:
            self._prompt_token = _mean(self._prompt_token, seconds / times.tokens, is_most=is_most)

    def count_draws(self, most: int, within: float = DRAW_SECONDS, *, is_background: bool = False) -> int:
        """Return how many tokens of each sequence the device should draw in one submit: 1 to `most`.

        Two submits are in flight, and their draws take `within` seconds at most. The number is the smallest that keeps
        the device at work while the host is busy with the other submit. A greater one would waste more: the slot of a
        sequence that ends stays empty until everything in flight is done. `is_background` if all sequences are in the
        background.
        """
        decode = self._decode.get(is_background)
        if decode is None:
            return 1
        seconds = within / 2 if self._host is None else min(_MARGIN * self._host, within / 2)
        return max(min(int(seconds / max(decode, 1e-6)), most), 1)

    def is_short(self, num_tokens: int | None, *, is_background: bool = False) -> bool:
        """Return True if a step takes so little time that another one may be submitted before or behind it.

        `num_tokens` is the size of a step with prompts; None stands for a step that runs one token of each sequence.
        `is_background` if all sequences are in the background. Return False if no such step has been timed.
        """
        if num_tokens is None:
            decode = self._decode.get(is_background)
            return decode is not None and 2 * decode <= DRAW_SECONDS
        return self._prompt_token is not None and num_tokens * self._prompt_token < SHORT_STEP


def _mean(before: float | None, value: float, *, is_most: bool) -> float:
    """Return the running mean with `value`, which never raises the mean if it `is_most`, an upper bound."""
    return before if is_most and before is not None and value > before else running_mean(before, value)


_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)  # tokens; the last of each class
_LEAST_WEIGHT = 0.1  # of the latest value in a mean
_MOST_ABOVE = 3.0  # times the mean, to which a greater value is cut: it shows a pause of the machine
_MEMORY = 4096  # steps after which a class that was not run is forgotten, as devices change their pace


class StepCosts:
    """The measured mean durations of steps by size class, which has steps of similar numbers of tokens."""

    def __init__(self) -> None:
        self._classes: dict[int, _Mean] = {}  # by the place in `_SIZES`, ascending
        self._num_noted = 0

    def note(self, tokens: int, seconds: float) -> None:
        """Update the mean of steps of about `tokens`, except with the first, in which kernels may be made."""
        self._num_noted += 1
        which = bisect_left(_SIZES, tokens)
        mean = self._classes.get(which)
        if mean is None or self._num_noted - mean.noted > _MEMORY:
            self._classes[which] = _Mean(self._num_noted)
            self._classes = dict(sorted(self._classes.items()))
        else:
            mean.take(tokens, seconds, self._num_noted)

    def of(self, tokens: int) -> float | None:
        """Return the mean seconds of a step with `tokens` tokens; None if no step of about that size was measured."""
        mean = self._classes.get(bisect_left(_SIZES, tokens))
        return None if mean is None or mean.count == 0 else mean.seconds

    def estimate(self, tokens: int) -> float:
        """Return the estimated seconds of a step of `tokens`; 0 if none was measured, or if `tokens` is 0.

        Interpolates between the sizes that were measured lately. Beyond them, the time is assumed to be in proportion
        to the tokens: a greater step may be tried if even then it is short enough, and a smaller one counts as short.
        """
        recent = [mean for mean in self._classes.values() if mean.count and self._num_noted - mean.noted <= _MEMORY]
        if recent and tokens > recent[-1].tokens:
            return recent[-1].seconds * tokens / recent[-1].tokens
        return _interpolate(recent, tokens, 0, 0.0)

    def beyond(self, smaller: int, seconds: float, tokens: int) -> float:
        """Return the estimated seconds of a step of `tokens`, given that a step of `smaller` tokens takes `seconds`.

        Interpolates between the measured sizes. A step greater than all of them counts like the greatest one, so that
        greater ones are tried.
        """
        greater = [mean for mean in self._classes.values() if mean.count and mean.tokens > smaller]
        return _interpolate(greater, tokens, smaller, seconds)


class _Mean:
    """The mean number of tokens and the mean seconds of measured steps of similar size."""

    def __init__(self, noted: int) -> None:
        self.noted = noted  # the number of the step that was counted last
        self.count = 0
        self.tokens = 0.0
        self.seconds = 0.0

    def take(self, tokens: int, seconds: float, noted: int) -> None:
        self.noted = noted
        self.count += 1
        weight = max(1.0 / self.count, _LEAST_WEIGHT)
        if self.count > 1:
            seconds = min(seconds, _MOST_ABOVE * self.seconds)
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (seconds - self.seconds)


def _interpolate(means: Sequence[_Mean], tokens: int, below: float, seconds: float) -> float:
    """Return the estimated seconds of a step of `tokens`, between steps of `below` tokens in `seconds` and `means`.

    `means` are ascending by tokens. A step greater than all of them takes as long as the greatest.
    """
    for mean in means:
        if mean.tokens >= tokens:
            return seconds + (tokens - below) / (mean.tokens - below) * (mean.seconds - seconds)
        below, seconds = mean.tokens, mean.seconds
    return seconds


class Meter:
    """Updates the engine's counters on the scheduler's thread; any thread may read `counters`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counters = EngineCounters()
        self.prompt_seconds: float | None = None  # mean time of foreground requests from their slot to the first token
        self._clock = clock
        self._resting = True
        self._busy_since = 0.0

    def rest(self) -> None:
        """Record that no sequence can run from now on, so that the time until `resume` is not added to steps."""
        self._resting = True

    def resume(self) -> None:
        """Record that a sequence can run again, after `rest`."""
        if self._resting:
            self._resting = False
            self._busy_since = self._clock()

    def collected(self, step: StepTimes, num_ahead: int, num_accepted: int) -> None:
        """Count a step after its outcome, with `num_ahead` tokens of the device and `num_accepted` of drafts."""
        counters, last = self.counters, max(step.last, self._busy_since)
        num_steps = step.num_steps
        counters.steps += num_steps
        counters.step_tokens.add(step.tokens, num_steps)
        counters.step_device_seconds.add((step.collected - max(step.submitted, last)) / num_steps, num_steps)
        counters.step_host_seconds.add(max(step.submitted - last, 0.0) / num_steps, num_steps)
        counters.decode_tokens += step.decode_tokens + num_ahead
        counters.prefill_tokens += step.tokens - step.decode_tokens
        if step.drawn_tokens:
            share = step.drawn_tokens / (step.drawn_tokens + num_accepted)  # of the step's time, for each token
            num_tokens = step.drawn_tokens + num_ahead + num_accepted
            counters.inter_token_seconds.add(share * (step.collected - last) / num_steps, num_tokens)

    def read_whole_row(self) -> None:
        """Count a logit row that was read to the host whole, because its candidates did not settle a draw."""
        self.counters.whole_rows += 1

    def failed(self) -> None:
        """Count a failed step. Its duration is not added to the durations of steps."""
        self.counters.failed_steps += 1
        self.rest()

    def started(self, arrived: float) -> float:
        """Count how long a request has waited for its slot since the time `arrived`; return the current time."""
        now = self._clock()
        self.counters.queue_seconds.add(now - arrived)
        return now

    def left_prompt(self, arrived: float, started: float, request: GenerateRequest) -> Timing:
        """Return the times at which a request arrived, started, and finished its prompt, which is now.

        Also count the request's time to first token, if it generates any.
        """
        now = self._clock()
        if request.max_tokens > 0:
            self.counters.first_token_seconds.add(now - arrived)
            if not request.client.is_background:
                self.prompt_seconds = running_mean(self.prompt_seconds, now - started)
        return Timing(arrived, started, now)


# The time of steps for those that others should not wait for: background requests, and prompts beside answers.
#
# Background requests are such as the lines of batches. Other requests, those in the foreground, should hardly be slower
# beside them than alone. So while any of these run, background sequences keep their slots, but run few tokens: steps
# may take longer by a fixed share in the mean. Between two foreground requests, steps are short, so that the next one
# soon finds the device free.
#
# While one client gets an answer, the prompts of other clients may double the time of a step. If several clients have
# come lately, the next may come at any time, so prompts are read in short steps.
#
# How long steps take is measured. So on a device on which a full step takes little longer than one of a single token,
# background sequences and prompts take part in every step.

BESIDE_ANSWERS = 2.0  # times the time of a step without prompts, which one with prompts of other clients may take
NEWCOMER_SECONDS = 0.05  # for which a client that comes may have to wait for a step with prompts of others
NEWCOMER_TOKENS = 32  # of prompts that such a step may have in any case, since fewer take hardly less time
LENGTHENING = 0.15  # of steps with foreground requests, in the mean: a share of their time
PROMPT_SECONDS = 1.0  # in which foreground prompts run alone; if they go on, background sequences take turns with them
QUIET_SECONDS = 10.0  # without foreground requests, after which steps may be as long as they are without such requests
_MOST_OF_PROMPT = 0.5  # of the mean time of a prompt: the time of a step for which the next request may have to wait
_LEAST_TIMES = 1.25  # times the time of one token, which such a step may take in any case


class TimeShares:
    """Decides how many tokens of background requests, and of prompts beside answers, run in a scheduler's steps."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._costs = StepCosts()
        self._last_foreground = float("-inf")  # when such a request came or ran, by the scheduler's clock
        self._prompts_since: float | None = None  # since when each step had a foreground prompt
        self._credit = 0.0  # seconds by which the next steps with foreground requests may take longer

    def note_foreground(self, now: float) -> None:
        """Record that a foreground request has come or runs at the time `now`."""
        self._last_foreground = now

    def note_step(self, times: StepTimes, now: float) -> None:
        """Update the mean costs of steps with one whose outcome has been processed at the time `now`."""
        self._costs.note(times.tokens, times.cost(now) / times.num_steps)

    def is_quiet(self, now: float) -> bool:
        """Return True if no foreground request has come or run for a while, so that none is expected soon."""
        return now - self._last_foreground > QUIET_SECONDS

    @property
    def longest_step(self) -> float:
        """The seconds that a step of background requests alone may take while foreground requests are expected."""
        return max(_MOST_OF_PROMPT * (self._meter.prompt_seconds or 0.0), _LEAST_TIMES * self._costs.estimate(1))

    def count_turn(self, now: float, least: int, wanted: int, *, has_prompt: bool) -> int:
        """Return how many background tokens run in a step of their own, which the other requests wait for.

        They are `least` to `wanted`, or 0 if the next step is not their turn. They get turns if foreground prompts
        follow one another for long, or they would wait for ever. `has_prompt` if the next step would have such a
        prompt.
        """
        if not has_prompt:
            self._prompts_since = None
            return 0
        if self._prompts_since is None:
            self._prompts_since = now
        if now - self._prompts_since < PROMPT_SECONDS or self._credit < self._costs.estimate(least):
            return 0
        return max(self._fitting(0, wanted, self._credit), least)

    def count_tokens(self, foreground: int, wanted: int) -> int:
        """Return how many of `wanted` background tokens may run in a step with `foreground` tokens of other requests.

        At least one may if `foreground` is 0. Otherwise they wait until there is time for all of them, or for as much
        as doubles the step, so that prompts are not cut into very small parts.
        """
        if foreground == 0:
            return max(self._fitting(0, wanted, self.longest_step), 1)
        alone, least = self._costs.estimate(foreground), self._costs.estimate(foreground + 1)
        enough = max(alone, least - alone)
        self._credit = min(self._credit, enough)
        if alone + self._credit >= self._costs.estimate(foreground + wanted):
            return wanted
        return self._fitting(foreground, wanted, alone + self._credit) if self._credit >= enough else 0

    def count_prompt_tokens(self, answers: int, least: int, wanted: int) -> int:
        """Return how many of `wanted` tokens of prompts run in a step with `answers` tokens of other clients' answers.

        They are `least` or more.
        """
        return max(self._fitting(answers, wanted, BESIDE_ANSWERS * self._costs.estimate(answers)), least)

    def count_newcomers_tokens(self, answers: int, least: int, wanted: int) -> int:
        """Return how many of `wanted` tokens of prompts run in a step for which a client that comes has to wait.

        They are `least` or more. The step also has `answers` tokens of answers to the clients of the prompts.
        """
        return min(max(self._fitting(answers, wanted, NEWCOMER_SECONDS), least, NEWCOMER_TOKENS), wanted)

    def charge(self, foreground: int, background: int, num_steps: int) -> None:
        """Record a step of `foreground` tokens and `background` tokens, which runs `num_steps` times."""
        alone = self._costs.estimate(foreground)
        longer = self._costs.estimate(foreground + background) - alone if background else 0.0
        self._credit += num_steps * (LENGTHENING * alone - longer)

    def _fitting(self, foreground: int, wanted: int, seconds: float) -> int:
        """Return how many of `wanted` tokens can be added to `foreground` in a step of at most `seconds`."""
        return bisect_right(range(1, wanted + 1), seconds, key=lambda more: self._costs.estimate(foreground + more))
