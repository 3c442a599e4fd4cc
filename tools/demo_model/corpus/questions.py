"""Skills of one question: arithmetic, words and facts. Numbers, words and wordings are held out."""

from __future__ import annotations

import random

from tools.demo_model.corpus.dialogue import Dialogue, Turn, ask, draw, is_held_out
from tools.demo_model.corpus.texts import (
    COMMON_WORDS,
    FACT_WORDS,
    NAMES,
    RELATIONS,
    UNSEEN_WORDINGS,
    WORDS,
    Relation,
    invented_word,
    read_texts,
)

ASKED = read_texts("questions")
_TABLE = 10  # the greatest factor of the products


def arithmetic(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a sum up to 99 or a difference of numbers up to 99."""
    plus = rng.random() < 0.5

    def make(rng: random.Random) -> tuple[int, int]:
        high = rng.randint(0, 99)
        low = rng.randint(0, high)
        return (high - low, low) if plus else (high, low)

    a, b = draw(rng, held_out, make, lambda pair: ("arithmetic", plus, pair))
    result = a + b if plus else a - b
    question = ask(rng, ASKED["sums"] if plus else ASKED["differences"], a=a, b=b)
    wrong = rng.sample([n for n in range(100) if n != result], 3)
    return Dialogue((Turn(question, str(result)),), wrong_answers=tuple(map(str, wrong)))


def _number(rng: random.Random) -> int:
    """Return a number below 1000, of one to three digits."""
    return rng.randint(0, rng.choice((9, 99, 999, 999, 999)))


def three_digits(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a sum or a difference of numbers up to 999."""
    plus = rng.random() < 0.5

    def make(rng: random.Random) -> tuple[int, int]:
        a, b = rng.randint(100, 999), _number(rng)
        if rng.random() < 0.15:  # round numbers and carries
            a, b = rng.choice(((round(a, -1), round(b, -1)), (round(a, -2), b), (999 - rng.randint(0, 5), b % 10)))
        if plus:
            return (a, b) if rng.random() < 0.5 else (b, a)
        return max(a, b), min(a, b)

    a, b = draw(rng, held_out, make, lambda pair: ("arithmetic", plus, pair))
    templates = (*ASKED["sums"], *ASKED["more_sums"]) if plus else ASKED["differences"]
    return Dialogue((Turn(ask(rng, templates, a=a, b=b), str(a + b if plus else a - b)),))


def word_problem(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a sum or a difference as a word problem."""
    plus = rng.random() < 0.5

    def make(rng: random.Random) -> tuple[int, int]:
        a, b = rng.randint(1, 50), rng.randint(1, 49)
        return (a, b) if plus else (max(a, b), min(a, b))

    a, b = draw(rng, held_out, make, lambda pair: ("arithmetic", plus, pair))
    things, others = rng.sample(ASKED["things"], 2)
    text = rng.choice(ASKED["gains"] if plus else ASKED["losses"]).format(
        a=a, b=b, things=things, others=others, n=rng.choice(NAMES)
    )
    return Dialogue((Turn(text, str(a + b if plus else a - b)),))


def small_numbers(rng: random.Random) -> Turn:
    """Return a product of small numbers, a whole quotient, or the number after or before another."""
    kind = rng.random()
    a, b = rng.randint(0, _TABLE), rng.randint(1, _TABLE)
    if kind < 0.4:
        return Turn(rng.choice(ASKED["products"]).format(a=a, b=b), str(a * b))
    if kind < 0.65:
        return Turn(rng.choice(ASKED["quotients"]).format(a=a * b, b=b), str(a))
    number = rng.randint(1, 999)
    if kind < 0.85:
        return Turn(rng.choice(ASKED["next"]).format(a=number), str(number + 1))
    return Turn(rng.choice(ASKED["before"]).format(a=number), str(number - 1))


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
    """Return a word to spell: b-a-n-a-n-a."""
    word = _word(rng, held_out, 10)
    return Dialogue((Turn(ask(rng, ASKED["spelling"], word=word), "-".join(word)),))


def reverse(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a word to reverse: ananab."""
    word = _word(rng, held_out, 7)
    return Dialogue((Turn(ask(rng, ASKED["reversing"], word=word), word[::-1].lower()),))


def upper_case(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a word to write in capitals: BANANA."""
    word = _word(rng, held_out, 10)
    return Dialogue((Turn(ask(rng, ASKED["capitals"], word=word), word.upper()),))


def count_letters(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a word with the number of its letters: 6."""
    word = _word(rng, held_out, 10)
    return Dialogue((Turn(ask(rng, ASKED["counting"], word=word), str(len(word))),))


def count_one_letter(rng: random.Random) -> Turn:
    """Return a word with the number of times that a letter is in it: 3."""
    word = _word(rng, False, 10).lower()
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("aeioustrnlp")
    return Turn(rng.choice(ASKED["letter_counting"]).format(c=letter, word=word), str(word.count(letter)))


def fact(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a question for a fact. Wordings are held out, not facts."""
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
