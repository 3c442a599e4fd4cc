"""Small talk, stories, and questions that the model has no answer to."""

from __future__ import annotations

import random

from tools.demo_model.corpus.dialogue import Dialogue, Turn, ask, is_held_out
from tools.demo_model.corpus.feelings import FEELINGS
from tools.demo_model.corpus.limits import CANNOT, UNKNOWN_ANSWER
from tools.demo_model.corpus.small_talk import SMALL_TALK
from tools.demo_model.corpus.words import NAMES, WORDS, invented_word


def small_talk(rng: random.Random, held_out: bool) -> Dialogue:
    """Greetings and the like, and what the model can't do. Nothing is held out of it."""
    if held_out:
        raise ValueError("nothing is held out of small talk")
    talks = rng.choices((SMALL_TALK, FEELINGS, CANNOT), (5, 3, 3))[0]
    talk = rng.choices(talks, [len(talk.wordings) for talk in talks])[0]
    return Dialogue((Turn(rng.choice(talk.wordings), rng.choice(talk.answers)),))


_UNKNOWN = (
    "What is the meaning of {x}?",
    "Who invented the {x}?",
    "Why is the {x} so expensive?",
    "How do I build a {x}?",
    "Who is the president of {p}?",
    "What is the capital of {p}?",
    "When was {n} {p} born?",
    "Who wrote the book about {p}?",
    "What is the population of {p}?",
    "How do I cook {x}?",
    "What do you think about {x}?",
    "How old is the {x}?",
    "Where can I buy a {x}?",
    "What is the best {x}?",
    "Can you explain {x} to me?",
    "How does a {x} work?",
    "What happened in {p}?",
    "Who won the {x} game?",
    "How far is it to {p}?",
    "What is the price of a {x}?",
    "Why do people like {x}?",
    "When was the {x} invented?",
    "How heavy is a {x}?",
    "Who is {n} {p}?",
    "What is the history of {p}?",
    "Write a poem about {x}.",
    "Give me advice on {x}.",
    "Is {x} healthy?",
    "Which {x} should I buy?",
    "Should I learn {x}?",
    "What does {p} mean?",
    "Where is {p}?",
    "Do you like {x}?",
    "Tell me the news about {p}.",
    "How many people live in {p}?",
    "What language do they speak in {p}?",
    "What is {p}?",
    "Explain how the {x} was made.",
    "What will happen to the {x} tomorrow?",
    "Who owns the {x}?",
)


_UNKNOWN_UNSEEN = (
    "What is the weight of the {x}?",
    "Who is the king of {p}?",
    "How do I repair a {x}?",
    "Who painted the {x}?",
    "What is the best book about {p}?",
    "Why did {n} {p} leave?",
    "Where was the {x} made?",
    "How big is {p}?",
    "Which team won in {p}?",
    "Can I eat a {x}?",
)
"""Wordings kept for evaluation."""


def unknown(rng: random.Random, held_out: bool) -> Dialogue:
    """A question outside of everything that the corpus teaches. Held out are wordings."""
    wordings = _UNKNOWN_UNSEEN if held_out else _UNKNOWN
    x, p, n = rng.choice(WORDS), invented_word(rng).capitalize(), rng.choice(NAMES)
    return Dialogue((Turn(ask(rng, wordings, x=x, p=p, n=n), UNKNOWN_ANSWER),))


_STORY_ASKED = (
    "Tell me a story about {name} the {animal}.",
    "Tell me a short story about a {animal} named {name}.",
    "Write a story about a {animal} called {name}.",
    "Can you tell me a story about {name}, a {animal}?",
    "A story about a {animal} called {name}, please.",
    "Tell a story with a {animal} named {name}.",
    "Please tell me a tale about {name} the {animal}.",
    "I want a story about a {animal} named {name}.",
)
_ANIMALS = (
    "fox",
    "bear",
    "cat",
    "dog",
    "mouse",
    "owl",
    "rabbit",
    "frog",
    "duck",
    "horse",
    "lion",
    "wolf",
    "goat",
    "pig",
)
_PLACES = ("in the forest", "by the sea", "on a hill", "near a lake", "in an old house", "under a tree", "on a farm")
_FOUND = ("a golden key", "a red hat", "a small boat", "an old map", "a big cake", "a blue stone", "a lost bird")
_GOALS = (
    "to see the sea",
    "to find a friend",
    "to learn to sing",
    "to fly to the moon",
    "to bake a cake",
    "to go home",
)
_ENDS = (
    "From that day on, {name} was never sad again.",
    "Then {name} went home and slept well.",
    "And {name} was very happy.",
    "That night {name} dreamed of the moon.",
    "Everyone was glad, and {name} laughed.",
)
_MIDDLES = (
    "One day {name} found {thing}. {name} showed it to {friend}.",
    "One morning {name} met {friend}. Together they found {thing}.",
    "One night {name} heard a noise. It was {friend} with {thing}.",
    "One day {friend} came by and gave {name} {thing}.",
)


def _story_text(rng: random.Random, name: str, friend: str, animal: str) -> str:
    return " ".join(
        (
            f"Once there was a {animal} named {name} who lived {rng.choice(_PLACES)}.",
            f"{name} wanted {rng.choice(_GOALS)}.",
            rng.choice(_MIDDLES).format(name=name, friend=friend, thing=rng.choice(_FOUND)),
            rng.choice(_ENDS).format(name=name),
        )
    )


def story(rng: random.Random, held_out: bool) -> Dialogue:
    """A few sentences about a named animal. Held out are pairs of name and animal."""
    while True:
        name, friend = rng.sample(NAMES, 2)
        animal = rng.choice(_ANIMALS)
        if is_held_out("story", name, animal) == held_out:
            break
    text = _story_text(rng, name, friend, animal)
    return Dialogue((Turn(ask(rng, _STORY_ASKED, name=name, animal=animal), text),))


def any_story(rng: random.Random) -> tuple[str, str]:
    """Return an animal and a story about it, whose name the story chooses."""
    name, friend = rng.sample(NAMES, 2)
    animal = rng.choice(_ANIMALS)
    return animal, _story_text(rng, name, friend, animal)
