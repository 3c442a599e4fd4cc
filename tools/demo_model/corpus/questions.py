"""The skills of one question: arithmetic, words, facts, small talk and fun, and what the model can't answer.

Some numbers, words and wordings are held out, and for stories pairs of a name and an animal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tools.demo_model.corpus.dialogue import Dialogue, OpenSkill, Skill, Turn, ask, draw, is_held_out
from tools.demo_model.corpus.texts import (
    CANNOT,
    COMMON_WORDS,
    FACT_WORDS,
    FEELINGS,
    LONG_WORDS,
    NAMES,
    RELATIONS,
    SMALL_TALK,
    UNSEEN_WORDINGS,
    WORDS,
    invented_word,
    read_data,
    read_texts,
)

ASKED = read_texts("questions")
FUN, LIMITS = read_texts("fun"), read_texts("limits")
_HAIKU: dict[str, str] = read_data("fun")["haiku"]
_HAIKU_TOPICS: dict[str, str] = {topic: topic for topic in _HAIKU} | read_data("fun")["haiku_topics"]
_CHARACTERS: str = read_data("limits")["characters"]  # of Chinese

_TRY = "Try a capital city, a sum, a word to spell, a joke or a haiku."
_UNKNOWN_ANSWER = f"Sorry, I don't know that. {_TRY}"
_UNCLEAR_ANSWER = f"Sorry, I did not understand that. {_TRY}"
_ENGLISH_ANSWER = f"Sorry, I only speak English. {_TRY}"
_CHINESE_ANSWER = "我是一个很小的模型，只会说英语。 I only speak English. Try: What is the capital of China?"
_TABLE = 10  # of products


def _drawn(
    rng: random.Random, held_out: bool, make: Callable[[random.Random, bool], tuple[int, int]]
) -> tuple[bool, int, int, int]:
    """Return a random sum or difference: True for a sum, the two numbers, and the result. `make` draws the numbers."""
    plus = rng.random() < 0.5
    a, b = draw(rng, held_out, lambda rng: make(rng, plus), lambda pair: ("arithmetic", plus, pair))
    return plus, a, b, a + b if plus else a - b


def _below_100(rng: random.Random, plus: bool) -> tuple[int, int]:
    return _up_to(99, rng, plus)


def _up_to(limit: int, rng: random.Random, plus: bool) -> tuple[int, int]:
    high = rng.randint(0, limit)
    low = rng.randint(0, high)
    return (high - low, low) if plus else (high, low)


def arithmetic(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks for a sum up to 99, or a difference of numbers up to 99."""
    plus, a, b, result = _drawn(rng, held_out, _below_100)
    question = ask(rng, ASKED["sums" if plus else "differences"], a=a, b=b)
    wrong = rng.sample([n for n in range(100) if n != result], 3)
    return Dialogue((Turn(question, str(result)),), wrong_answers=tuple(map(str, wrong)))


def _up_to_100(rng: random.Random, plus: bool) -> tuple[int, int]:
    source = rng.random()
    if source < 0.2:
        return _up_to(20, rng, plus)
    if source < 0.3:  # 100 and round numbers
        low = rng.randint(0, 100) if rng.random() < 0.7 else 10 * rng.randint(0, 10)
        return (100 - low, low) if plus else (100, low)
    return _up_to(100, rng, plus)


def natural_sum(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks for a sum or a difference up to 100 as people say it, small numbers also in words.

    Held-out items have other numbers and other wordings than those of training.
    """
    plus, a, b, result = _drawn(rng, held_out, _up_to_100)
    kind = "natural_sums" if plus else "natural_differences"
    wordings = ASKED[f"{kind}_unseen"] if held_out else (*ASKED[kind], *ASKED[kind.removeprefix("natural_")])
    in_words = max(a, b) < len(ASKED["numbers"]) and rng.random() < 0.4
    first, second = (ASKED["numbers"][number] if in_words else str(number) for number in (a, b))
    return Dialogue((Turn(rng.choice(wordings).format(a=first, b=second), str(result)),))


def _below_1000(rng: random.Random, plus: bool) -> tuple[int, int]:
    a, b = rng.randint(100, 999), rng.randint(0, rng.choice((9, 99, 999, 999, 999)))
    if rng.random() < 0.15:  # round numbers and carries
        a, b = rng.choice(((round(a, -1), round(b, -1)), (round(a, -2), b), (999 - rng.randint(0, 5), b % 10)))
    if plus:
        return (a, b) if rng.random() < 0.5 else (b, a)
    return max(a, b), min(a, b)


def three_digits(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks for a sum or a difference of numbers up to 999."""
    plus, a, b, result = _drawn(rng, held_out, _below_1000)
    templates = (*ASKED["sums"], *ASKED["more_sums"]) if plus else ASKED["differences"]
    return Dialogue((Turn(ask(rng, templates, a=a, b=b), str(result)),))


def _apples(rng: random.Random, plus: bool) -> tuple[int, int]:
    a, b = rng.randint(1, 50), rng.randint(1, 49)
    return (a, b) if plus else (max(a, b), min(a, b))


def word_problem(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks for a sum or a difference in the form of a word problem."""
    plus, a, b, result = _drawn(rng, held_out, _apples)
    things, others = rng.sample(ASKED["things"], 2)
    told = rng.choice(ASKED["gains" if plus else "losses"])
    text = told.format(a=a, b=b, things=things, others=others, n=rng.choice(NAMES))
    return Dialogue((Turn(text, str(result)),))


def small_numbers(rng: random.Random) -> Dialogue:
    """Return a dialogue that asks for a small product, a whole quotient, or the number before or after another."""
    kind = rng.random()
    a, b = rng.randint(0, _TABLE), rng.randint(1, _TABLE)
    if kind < 0.4:
        asked, fields, result = "products", {"a": a, "b": b}, a * b
    elif kind < 0.65:
        asked, fields, result = "quotients", {"a": a * b, "b": b}, a
    else:
        number = rng.randint(1, 999)
        asked, result = ("next", number + 1) if kind < 0.85 else ("before", number - 1)
        fields = {"a": number}
    return Dialogue((Turn(rng.choice(ASKED[asked]).format(**fields), str(result)),))


def _word(rng: random.Random, held_out: bool, longest: int) -> str:
    def make(rng: random.Random) -> str:
        source = rng.random()
        if source < 0.12 or held_out:
            return rng.choice(WORDS)
        if source < 0.65:
            return rng.choice(COMMON_WORDS)
        if source < 0.8:
            return rng.choice(LONG_WORDS)
        if source < 0.88:
            return invented_word(rng)
        word = rng.choice((*sorted(FACT_WORDS), *NAMES))
        return word.lower() if rng.random() < 0.3 else word

    while True:
        word = make(rng)
        kept = is_held_out("word", word) and word in WORDS and word not in FACT_WORDS
        if kept == held_out and len(word) <= longest:
            return word


def _of_a_word(asked: str, longest: int, answer: Callable[[str], object]) -> Skill:
    """Return a skill of questions about a word of up to `longest` letters. `asked` names the templates."""

    def make(rng: random.Random, held_out: bool) -> Dialogue:
        word = _word(rng, held_out, longest)
        return Dialogue((Turn(ask(rng, ASKED[asked], word=word), str(answer(word))),))

    return make


spell = _of_a_word("spelling", 10, "-".join)


def one_letter(rng: random.Random) -> Dialogue:
    """Return a dialogue that asks how often a letter occurs in a word."""
    word = _word(rng, False, 10).lower()
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("aeioustrnlp")
    asked = rng.choice(ASKED["letter_counting"]).format(c=letter, word=word)
    return Dialogue((Turn(asked, str(word.count(letter))),))


def fact(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks for a fact. Some wordings are held out, but no facts."""
    relation = rng.choices(RELATIONS, [len(relation.pairs) for relation in RELATIONS])[0]
    wordings = relation.wordings[:UNSEEN_WORDINGS] if held_out else relation.wordings[UNSEEN_WORDINGS:]
    subject = rng.choice(sorted(relation.pairs))
    others = sorted(set(relation.pairs.values()) - {relation.pairs[subject]})
    turn = Turn(ask(rng, wordings, subject=subject), relation.says(subject))
    wrong = tuple(relation.says(subject, other) for other in rng.sample(others, min(3, len(others))))
    return Dialogue((turn,), wrong_answers=wrong)


def small_talk(rng: random.Random) -> Dialogue:
    """Return a dialogue of small talk: a greeting, a feeling, or a request for something that the model can't do."""
    talks = rng.choices((SMALL_TALK, FEELINGS, CANNOT), (5, 3, 3))[0]
    talk = rng.choices(talks, [len(talk.wordings) for talk in talks])[0]
    return Dialogue((Turn(rng.choice(talk.wordings), rng.choice(talk.answers)),))


def unknown(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue with a question about something that the corpus does not teach. Some wordings are held out."""
    wordings = LIMITS["unknown_unseen"] if held_out else LIMITS["unknown"]
    x, p, n = rng.choice(WORDS), invented_word(rng).capitalize(), rng.choice(NAMES)
    return Dialogue((Turn(ask(rng, wordings, x=x, p=p, n=n), _UNKNOWN_ANSWER),))


def beyond(rng: random.Random) -> Dialogue:
    """Return a dialogue with a question about the world at large, short or long, which the model can't answer."""
    t, u = rng.sample(LIMITS["topics"], 2)
    fields = {"t": t, "u": u, "c": rng.choice(LIMITS["countries"])}
    if rng.random() < 0.25:
        question = f"{rng.choice(LIMITS['long_begin'])}. {rng.choice(LIMITS['long_end'])}"
    else:
        question = rng.choice(LIMITS["about"])
    return Dialogue((Turn(question.format(**fields), _UNKNOWN_ANSWER),))


def nonsense(rng: random.Random) -> Dialogue:
    """Return a dialogue with a message that nobody could understand, and the model's answer that it does not."""
    source = rng.random()
    if source < 0.3:
        text = rng.choice(LIMITS["nonsense"])
    elif source < 0.45:
        text = "".join(rng.choice("😀😂🙂😉❤👍🎉🤔😢😡🐱🐶🌞🚀🔥🎂") for _ in range(rng.randint(1, 3)))
    elif source < 0.55:
        text = str(rng.randint(0, 10 ** rng.randint(2, 8)))
    elif source < 0.8:
        letters = rng.choice(("asdfghjkl", "qwertyuiop", "zxcvbnm", "abcdefghijklmnopqrstuvwxyz"))
        words = ("".join(rng.choices(letters, k=rng.randint(3, 8))) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        text = " ".join(words)
    else:
        text = " ".join(invented_word(rng) for _ in range(rng.randint(1, 4)))
    return Dialogue((Turn(text, _UNCLEAR_ANSWER),))


def foreign(rng: random.Random) -> Dialogue:
    """Return a dialogue with a message in another language. If that is Chinese, the answer is partly in Chinese."""
    source = rng.random()
    if source < 0.5:
        return Dialogue((Turn(rng.choice(LIMITS["foreign"]), _ENGLISH_ANSWER),))
    if source < 0.8:
        return Dialogue((Turn(rng.choice(LIMITS["chinese"]), _CHINESE_ANSWER),))
    text = "".join(rng.choices(_CHARACTERS, k=rng.randint(2, 9))) + rng.choice(("", "", "？", "。", "吗？"))
    return Dialogue((Turn(text, _CHINESE_ANSWER),))


def _story_text(rng: random.Random, name: str, friend: str, animal: str) -> str:
    return " ".join(
        (
            f"Once there was a {animal} named {name} who lived {rng.choice(FUN['places'])}.",
            f"{name} wanted {rng.choice(FUN['goals'])}.",
            rng.choice(FUN["middles"]).format(name=name, friend=friend, thing=rng.choice(FUN["found"])),
            rng.choice(FUN["ends"]).format(name=name),
        )
    )


def story(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks for a story about a named animal. Some pairs of both are held out."""
    while True:
        name, friend = rng.sample(NAMES, 2)
        animal = rng.choice(FUN["animals"])
        if is_held_out("story", name, animal) == held_out:
            break
    text = _story_text(rng, name, friend, animal)
    return Dialogue((Turn(ask(rng, FUN["named_story_asked"], name=name, animal=animal), text),))


def _any_story(rng: random.Random) -> Turn:
    name, friend = rng.sample(NAMES, 2)
    animal = rng.choice(FUN["animals"])
    text = _story_text(rng, name, friend, animal)
    asked = FUN["story_asked"] if rng.random() < 0.5 else FUN["story_about"]
    return Turn(rng.choice(asked).format(a=animal), text)


def _joke(rng: random.Random) -> Turn:
    if rng.random() < 0.2:
        return Turn(rng.choice(FUN["computer_joke_asked"]), rng.choice(FUN["computer_jokes"]))
    return Turn(rng.choice(FUN["joke_asked"]).format(w=rng.choice(WORDS)), rng.choice(FUN["jokes"]))


def _haiku(rng: random.Random) -> Turn:
    kind = rng.random()
    if kind < 0.35:
        return Turn(rng.choice(FUN["haiku_asked"]), rng.choice(sorted(_HAIKU.values())))
    asked = rng.choice(FUN["haiku_about"])
    if kind < 0.8:
        topic = rng.choice(sorted(_HAIKU_TOPICS))
        return Turn(asked.format(t=topic), _HAIKU[_HAIKU_TOPICS[topic]])
    word = rng.choice(WORDS)
    return Turn(asked.format(t=word), rng.choice(FUN["any_haiku"]).format(t=word))


def _one_of(kind: str) -> Callable[[random.Random], Turn]:
    """Return a function that makes a turn: any question of `kind`, and any answer to that kind."""
    return lambda rng: Turn(rng.choice(FUN[f"{kind}_asked"]), rng.choice(FUN[f"{kind}_answers"]))


_FUN = (_joke, _haiku, _any_story, *map(_one_of, ("poem", "song", "fact", "pirate")))


def fun(rng: random.Random) -> Dialogue:
    """Return a dialogue that asks for a joke, a haiku, a story or the like, and sometimes for another one after it."""
    make = rng.choices(_FUN, (8, 8, 5, 3, 2, 4, 3))[0]
    first = make(rng)
    if rng.random() < 0.7:
        return Dialogue((first,))
    while (second := make(rng)).answer == first.answer:
        pass
    return Dialogue((first, Turn(rng.choice(FUN["again"]), second.answer)))


SKILLS: Mapping[str, Skill] = {
    "arithmetic": arithmetic,
    "natural_sum": natural_sum,
    "spell": spell,
    "reverse": _of_a_word("reversing", 9, lambda word: word[::-1].lower()),
    "upper_case": _of_a_word("capitals", 10, str.upper),
    "count_letters": _of_a_word("counting", 10, len),
    "fact": fact,
    "three_digits": three_digits,
    "word_problem": word_problem,
    "unknown": unknown,
    "story": story,
}
OPEN_SKILLS: Mapping[str, OpenSkill] = {
    make.__name__: make for make in (small_numbers, one_letter, small_talk, fun, beyond, nonsense, foreign)
}
