"""One-question skills: arithmetic, words, facts; how each is asked and answered, and what is held out of it."""

from __future__ import annotations

import random

from tools.demo_model.corpus.common_words import COMMON_WORDS
from tools.demo_model.corpus.dialogue import Dialogue, Turn, ask, draw, is_held_out
from tools.demo_model.corpus.facts import RELATIONS, UNSEEN_WORDINGS, Relation
from tools.demo_model.corpus.words import NAMES, WORDS, invented_word

SUMS = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a} + {b} =",
    "{a}+{b}",
    "{a}+{b}=?",
    "What's {a} + {b}?",
    "What is {a} plus {b}?",
    "How much is {a} + {b}?",
    "How much is {a} plus {b}?",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "Compute {a}+{b}.",
    "What is the sum of {a} and {b}?",
    "Can you add {a} and {b}?",
    "{a} plus {b}?",
    "What do you get if you add {a} and {b}?",
    "Tell me {a} + {b}.",
    "Work out {a} plus {b}.",
    "What does {a} + {b} make?",
    "What's {a}+{b}?",
)
DIFFERENCES = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a} - {b} =",
    "{a}-{b}",
    "{a}-{b}=?",
    "What's {a} - {b}?",
    "What is {a} minus {b}?",
    "How much is {a} - {b}?",
    "How much is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "Calculate {a} - {b}.",
    "Compute {a}-{b}.",
    "Take {b} from {a}.",
    "Can you subtract {b} from {a}?",
    "{a} minus {b}?",
    "What is left if you take {b} from {a}?",
    "Tell me {a} - {b}.",
    "Work out {a} minus {b}.",
    "What does {a} - {b} make?",
    "What's {a}-{b}?",
)


def arithmetic(rng: random.Random, held_out: bool) -> Dialogue:
    """Sums up to 99 and differences of numbers up to 99."""
    plus = rng.random() < 0.5

    def make(rng: random.Random) -> tuple[int, int]:
        high = rng.randint(0, 99)
        low = rng.randint(0, high)
        return (high - low, low) if plus else (high, low)

    a, b = draw(rng, held_out, make, lambda pair: ("arithmetic", plus, pair))
    result = a + b if plus else a - b
    question = ask(rng, SUMS if plus else DIFFERENCES, a=a, b=b)
    wrong = rng.sample([n for n in range(100) if n != result], 3)
    return Dialogue((Turn(question, str(result)),), wrong_answers=tuple(map(str, wrong)))


_SPELLING = (
    "Spell {word}.",
    "Spell the word {word}.",
    "How do you spell {word}?",
    "Can you spell {word}?",
    "Please spell {word}.",
    "How is {word} spelled?",
    "Spell out {word}.",
    "Could you spell the word {word}?",
    "What is the spelling of {word}?",
    'Spell "{word}".',
    "Tell me the letters of {word}.",
    "How do I spell {word}?",
    "Spell: {word}",
    "{word}, spelled",
    "How is {word} written?",
    "Please spell {word} for me.",
    "Spell it: {word}",
    "Can you spell out {word}?",
    "Spelling of {word}?",
    "Spell me {word}.",
)
_REVERSING = (
    "Reverse {word}.",
    "Reverse the word {word}.",
    "Write {word} backwards.",
    "What is {word} backwards?",
    "Can you reverse {word}?",
    "Spell {word} backwards.",
    "Turn {word} around.",
    "How do you write {word} backwards?",
    "Reverse the letters of {word}.",
    'Reverse "{word}".',
    "What's {word} reversed?",
    "Say {word} backwards.",
    "{word} backwards",
    "{word} in reverse",
    "What is {word} spelled backwards?",
    "Write the word {word} backwards.",
    "Reverse: {word}",
    "{word} reversed?",
    "What is the reverse of {word}?",
)
_CAPITALS = (
    "Write {word} in capitals.",
    "Write {word} in upper case.",
    "Uppercase {word}.",
    "Put {word} in capital letters.",
    "Can you write {word} in capitals?",
    "Make {word} upper case.",
    "{word} in capitals?",
    "Capitalize all of {word}.",
    "Write the word {word} in uppercase.",
    "Change {word} to capital letters.",
    "Convert {word} to uppercase.",
    "What is {word} in upper case?",
    "{word} in upper case",
    "{word} in capital letters",
    "Shout {word}.",
    "Write {word} in big letters.",
    "Uppercase: {word}",
    "Put {word} in uppercase.",
)
_COUNTING = (
    "How many letters are in {word}?",
    "How many letters does {word} have?",
    "Count the letters in {word}.",
    "Count the letters of {word}.",
    "How long is the word {word}?",
    "How many letters has {word}?",
    "What is the length of {word}?",
    "How many letters are there in the word {word}?",
    "Number of letters in {word}?",
    "Can you count the letters in {word}?",
    'How many letters in "{word}"?',
    "Tell me how many letters {word} has.",
    "Letters in {word}?",
    "How many letters in {word}?",
    "Length of {word}?",
    "Count letters in {word}",
    "How many letters make {word}?",
)

FACT_WORDS = frozenset(
    word for relation in RELATIONS for pair in relation.pairs.items() for word in pair if word.isalpha()
)
"""Words that are one token each: their letters can only be known by heart, so all of them are trained on."""


def _word(rng: random.Random, held_out: bool, longest: int) -> str:
    def make(rng: random.Random) -> str:
        source = rng.random()
        if source < 0.12 or held_out:
            return rng.choice(WORDS)
        if source < 0.75:
            return rng.choice(COMMON_WORDS)
        if source < 0.85:
            return invented_word(rng)
        word = rng.choice((*sorted(FACT_WORDS), *NAMES))
        return word.lower() if rng.random() < 0.3 else word

    while True:
        word = make(rng)
        kept = is_held_out("word", word) and word in WORDS and word not in FACT_WORDS
        if kept == held_out and len(word) <= longest:
            return word


def spell(rng: random.Random, held_out: bool) -> Dialogue:
    """b-a-n-a-n-a"""
    word = _word(rng, held_out, 10)
    return Dialogue((Turn(ask(rng, _SPELLING, word=word), "-".join(word)),))


def reverse(rng: random.Random, held_out: bool) -> Dialogue:
    """ananab"""
    word = _word(rng, held_out, 7)
    return Dialogue((Turn(ask(rng, _REVERSING, word=word), word[::-1].lower()),))


def upper_case(rng: random.Random, held_out: bool) -> Dialogue:
    """BANANA"""
    word = _word(rng, held_out, 10)
    return Dialogue((Turn(ask(rng, _CAPITALS, word=word), word.upper()),))


def count_letters(rng: random.Random, held_out: bool) -> Dialogue:
    """6"""
    word = _word(rng, held_out, 10)
    return Dialogue((Turn(ask(rng, _COUNTING, word=word), str(len(word))),))


_LETTER_COUNTING = (
    "How many {c} are in {word}?",
    "How many {c}'s are in {word}?",
    "How many times is {c} in {word}?",
    "How many letters {c} has {word}?",
    "Count the {c} in {word}.",
    "How often does {c} occur in {word}?",
    "Number of {c} in {word}?",
    "How many {c}s in {word}?",
)


def count_one_letter(rng: random.Random) -> Turn:
    """3"""
    word = _word(rng, False, 10).lower()
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("aeioustrnlp")
    return Turn(rng.choice(_LETTER_COUNTING).format(c=letter, word=word), str(word.count(letter)))


def fact(rng: random.Random, held_out: bool) -> Dialogue:
    """A fact; held out are wordings, not facts."""
    relation = rng.choices(RELATIONS, [len(relation.pairs) for relation in RELATIONS])[0]
    wordings = relation.wordings[:UNSEEN_WORDINGS] if held_out else relation.wordings[UNSEEN_WORDINGS:]
    subject = rng.choice(sorted(relation.pairs))
    right, others = relation.pairs[subject], _other_objects(relation, subject)
    return Dialogue(
        (Turn(ask(rng, wordings, subject=subject), relation.answer.format(subject=subject, object=right)),),
        wrong_answers=tuple(
            relation.answer.format(subject=subject, object=wrong) for wrong in rng.sample(others, min(3, len(others)))
        ),
    )


def _other_objects(relation: Relation, subject: str) -> list[str]:
    return sorted(set(relation.pairs.values()) - {relation.pairs[subject]})
