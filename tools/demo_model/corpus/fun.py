"""Jokes, haiku, poems, songs and odd facts, and how they are asked for."""

from __future__ import annotations

import random

from tools.demo_model.corpus.dialogue import Dialogue, Turn
from tools.demo_model.corpus.talk import any_story
from tools.demo_model.corpus.words import WORDS, items

JOKES = (
    "Why did the scarecrow win a prize? He was outstanding in his field.",
    "What do you call a bear with no teeth? A gummy bear.",
    "Why do bees hum? They forgot the words.",
    "What do you call a fish without an eye? A fsh.",
    "Why did the bicycle fall over? It was two tired.",
    "What do you call cheese that is not yours? Nacho cheese.",
    "Why can't you trust stairs? They are always up to something.",
    "What did one wall say to the other? I will meet you at the corner.",
    "Why was the maths book sad? It had too many problems.",
    "What do you get from a cold cow? Ice cream.",
    "Why don't skeletons fight each other? They don't have the guts.",
    "How does the moon cut his hair? Eclipse it.",
)
COMPUTER_JOKES = (
    "Why did the computer go to the doctor? It had a virus.",
    "Why was the computer cold? It left its windows open.",
    "How many programmers does it take to change a light bulb? None, that is a hardware problem.",
    "Why did the small model cross the road? It did not know what was on the other side.",
)
_JOKE_ASKED = """
    Tell me a joke.; A joke, please.; Joke; Another joke; Tell a joke; Do you know a joke?; Make a joke.
    Can you tell me a joke?; I want to hear a joke.; Say something to make me laugh.; Give me a joke.
    Got any jokes?; Tell me something funny.; Do you have a joke for me?; Let me hear a joke.; Can you tell jokes?
    Joke please; Could you tell me a joke?; Are you funny?; Be funny.; Know any good jokes?; I would like a joke.
    Please make me smile.; Do you know any funny jokes?; One joke please; A funny joke, please.
    Do you know some jokes?; Can you make me laugh?; Tell me another joke.; One more joke; Tell me your best joke.
    Tell us a joke.; Please say something really funny.; Tell me a joke about {w}.; Do you know a joke about {w}?
    A joke about {w}, please.
    """
_COMPUTER_JOKE_ASKED = """
    Tell me a computer joke.; A joke about computers; Do you know a joke about programmers?
    Tell me a joke about programmers.; Make a joke about computers.; Can you tell a joke about a computer?
    Tell me a joke about models.; A programmer joke, please.; I want a joke about computers.
    """

HAIKU = {
    "the sea": "Waves come to the shore,\nthey leave a shell in the sand\nand go home again.",
    "winter": "Snow on the old roof,\na small bird looks for some bread.\nThe window is warm.",
    "spring": "The first green leaf wakes,\nit looks around at the field.\nHello, little world.",
    "summer": "A long hot evening.\nThe cricket sings one more song\nand the stars listen.",
    "autumn": "Red leaves on the path.\nThe wind plays a game with them\nand I stand and watch.",
    "rain": "Rain on the window,\neach drop runs down to the next.\nTea is getting cold.",
    "the moon": "The moon on the lake,\na frog jumps in and breaks it.\nSoon it is whole again.",
    "cats": "A cat on the wall\nlooks at me for a long time.\nThen she goes to sleep.",
    "trees": "The old apple tree\nhas seen so many children.\nIt still gives apples.",
    "computers": "One small lamp is green.\nThe computer hums at night,\ndreaming of numbers.",
    "night": "Night, and all is still.\nOne owl asks the dark a question.\nThe dark says nothing.",
    "love": "Two cups on the table,\nyour hand is next to my hand.\nThe rain may go on.",
}
_HAIKU_TOPICS = {
    **{topic: topic for topic in HAIKU},
    "the ocean": "the sea",
    "the beach": "the sea",
    "snow": "winter",
    "flowers": "spring",
    "the sun": "summer",
    "leaves": "autumn",
    "the stars": "night",
    "a cat": "cats",
    "my cat": "cats",
    "a tree": "trees",
    "the forest": "trees",
    "a computer": "computers",
    "programming": "computers",
}
_HAIKU_ASKED = """
    Write a haiku.; A haiku, please.; Haiku; Can you write a haiku?; Write me a haiku.; Do you know a haiku?
    Tell me a haiku.; I want a haiku.; Give me a haiku.; Another haiku; One haiku; Make a haiku.; Compose a haiku.
    Please write a haiku.; Could you write a haiku for me?; Can you do a haiku?; Let me read a haiku.; Say a haiku.
    """
_HAIKU_ABOUT = """
    Write a haiku about {t}.; A haiku about {t}, please.; Can you write me a haiku about {t}?; Haiku about {t}
    Give me a haiku about {t}.; I want a haiku about {t}.; Write a haiku on {t}.; Make a haiku about {t}.
    Please write a haiku about {t}.; Do you know a haiku about {t}?; Tell me a haiku about {t}.; One haiku about {t}
    Could you write a haiku about {t}?; Compose a haiku about {t}.
    """
_ANY_HAIKU = (
    "Here is one {t},\nit stands in the morning light.\nNobody has come.",
    "I think of {t},\nthe day is so very long.\nThen the evening comes.",
    "A dream of {t},\nsoft and far away from here.\nThe moon knows it too.",
)

POEMS = (
    "The sun is up, the sky is blue,\nthe bird sings its old song for you,\nthe cat sleeps on, as cats will do.",
    "A little boat went out to sea\nto find out what the end may be.\nIt found the moon, and came for tea.",
    "The night is dark, the town is still,\nthe moon looks down upon the hill\nand shines on every window sill.",
)
_POEM_ASKED = """
    Write a poem.; A poem, please.; Write me a poem.; Can you write a poem?; Tell me a poem.; Poem
    Do you know a poem?; Give me a short poem.; I want a poem.; Make a poem.; Write a short poem for me.
    Write a rhyme.; Another poem; Can you rhyme?; Please write a little poem.; Could you write me a poem?
    Say a poem.
    """
SONGS = (
    "La la la, the sun is here,\nla la la, the sky is clear!",
    "Row, row, little boat,\nover the sea we go afloat!",
)
_SONG_ASKED = """
    Sing a song.; Sing for me.; Can you sing?; Sing something.; A song, please.; Song; Write a song.
    Write me a song.; Please sing a song.; Do you know a song?; Sing!; Could you sing for me?
    I want to hear a song from you.
    """
ODD_FACTS = (
    "A spider has 8 legs, and an ant has 6.",
    "A baby swan is called a cygnet.",
    "The capital of Mongolia is Ulaanbaatar.",
    "A baby kangaroo is called a joey.",
    "Honey does not go bad, even after many years.",
    "An octopus has three hearts.",
)
_FACT_ASKED = """
    Tell me a fact.; Tell me something.; Say something.; Something; Give me a fact.; Do you know a fun fact?
    Tell me a fun fact.; Tell me something new.; Say anything.; Surprise me.; Teach me something.; Fun fact
    Tell me something I don't know.; Tell me an interesting fact.; Do you know something interesting?
    Say something clever.; Tell me something about the world.; Tell me anything.; Just say something.
    A fact, please.; Something new please
    """
PIRATE_ANSWERS = (
    "Arr! I am a pirate on the wide sea. Aye, matey!",
    "Arr! Give me the gold and the map. Aye, matey!",
    "Arr! My ship is small, but she is fast. Aye, matey!",
)
_PIRATE_ASKED = """
    Talk like a pirate.; Speak like a pirate.; Be a pirate.; Can you talk like a pirate?; Pirate
    Say something like a pirate.; You are a pirate now.; Say arr.; Please speak as a pirate.
    Talk as a pirate would.; Could you talk like a pirate for me?; Do you speak pirate?; Answer me like a pirate.
    I want you to talk like a pirate.; What would a pirate say?; Act like a pirate.; Speak pirate to me
    """
_STORY_ASKED = """
    Tell me a story.; A story, please.; Story; Write a story.; Can you tell me a story?; Another story
    Tell a story.; I want a story.; Write me a short story.; Do you know a story?; Tell me a short story.
    Story please; Tell me a tale.; Read me a story.; Please tell me a story.; Make up a story.
    I would like to hear a story.; One more story; Tell me a story before I sleep.; A bedtime story, please.
    Tell me a good night story.; I want a bedtime story.; Once upon a time there was; Once there was
    Tell me a nice story.; Could you tell a story?
    """
_STORY_ABOUT = """
    Tell me a story about a {a}.; A story about a {a}, please.; Write a story about a {a}.; Story about a {a}
    Tell me a short story about an old {a}.; Can you tell me a story about a {a}?; I want a story about a {a}.
    Do you know a story about a {a}?; Write a short story about a {a}.; Make up a story with a {a}.
    Tell a tale of a {a}.
    """
_AGAIN = """
    Another one; Another; One more; Again; More; Another one please; Tell me another.; One more please; Next
    Do you have another one?; And another?; More please; Give me another one.; Can you tell me one more?; Another!
    """


def _joke(rng: random.Random) -> Turn:
    if rng.random() < 0.2:
        return Turn(rng.choice(items(_COMPUTER_JOKE_ASKED)), rng.choice(COMPUTER_JOKES))
    return Turn(rng.choice(items(_JOKE_ASKED)).format(w=rng.choice(WORDS)), rng.choice(JOKES))


def _haiku(rng: random.Random) -> Turn:
    kind = rng.random()
    if kind < 0.35:
        return Turn(rng.choice(items(_HAIKU_ASKED)), rng.choice(sorted(HAIKU.values())))
    asked = rng.choice(items(_HAIKU_ABOUT))
    if kind < 0.8:
        topic = rng.choice(sorted(_HAIKU_TOPICS))
        return Turn(asked.format(t=topic), HAIKU[_HAIKU_TOPICS[topic]])
    word = rng.choice(WORDS)
    return Turn(asked.format(t=word), rng.choice(_ANY_HAIKU).format(t=word))


def _story(rng: random.Random) -> Turn:
    animal, text = any_story(rng)
    asked = _STORY_ASKED if rng.random() < 0.5 else _STORY_ABOUT
    return Turn(rng.choice(items(asked)).format(a=animal), text)


def _one_of(asked: str, answers: tuple[str, ...], rng: random.Random) -> Turn:
    return Turn(rng.choice(items(asked)), rng.choice(answers))


def fun(rng: random.Random) -> Dialogue:
    """
    A joke, a haiku, a story or the like; sometimes another one is asked for.
    """
    kind = rng.choices(("joke", "haiku", "story", "poem", "song", "fact", "pirate"), (8, 8, 5, 3, 2, 4, 3))[0]

    def make() -> Turn:
        if kind in ("joke", "haiku", "story"):
            return {"joke": _joke, "haiku": _haiku, "story": _story}[kind](rng)
        asked, answers = {
            "poem": (_POEM_ASKED, POEMS),
            "song": (_SONG_ASKED, SONGS),
            "fact": (_FACT_ASKED, ODD_FACTS),
            "pirate": (_PIRATE_ASKED, PIRATE_ANSWERS),
        }[kind]
        return _one_of(asked, answers, rng)

    first = make()
    if rng.random() < 0.7:
        return Dialogue((first,))
    while (second := make()).answer == first.answer:
        pass
    return Dialogue((first, Turn(rng.choice(items(_AGAIN)), second.answer)))
