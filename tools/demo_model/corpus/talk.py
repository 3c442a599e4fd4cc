"""The skills of small talk, stories, jokes and poems, and of questions that the model can't answer or understand."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tools.demo_model.corpus.dialogue import Dialogue, OpenSkill, Skill, Turn, ask, is_held_out
from tools.demo_model.corpus.texts import (
    CANNOT,
    FEELINGS,
    NAMES,
    SMALL_TALK,
    WORDS,
    invented_word,
    read_data,
    read_texts,
)

FUN, LIMITS = read_texts("fun"), read_texts("limits")
_HAIKU: dict[str, str] = read_data("fun")["haiku"]
_HAIKU_TOPICS: dict[str, str] = {topic: topic for topic in _HAIKU} | read_data("fun")["haiku_topics"]
_CHARACTERS: str = read_data("limits")["characters"]  # of Chinese

_TRY = "Try a capital city, a sum, a word to spell, a joke or a haiku."
_UNKNOWN_ANSWER = f"Sorry, I don't know that. {_TRY}"
_UNCLEAR_ANSWER = f"Sorry, I did not understand that. {_TRY}"
_ENGLISH_ANSWER = f"Sorry, I only speak English. {_TRY}"
_CHINESE_ANSWER = "我是一个很小的模型，只会说英语。 I only speak English. Try: What is the capital of China?"


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


SKILLS: Mapping[str, Skill] = {"unknown": unknown, "story": story}
OPEN_SKILLS: Mapping[str, OpenSkill] = {
    "small_talk": small_talk,
    "fun": fun,
    "beyond": beyond,
    "nonsense": nonsense,
    "foreign": foreign,
}
