"""The facts that the model learns, as relations: pairs, and the ways to ask for one. Data only.

In each relation the first two wordings are never used in training: they are the unseen wordings of the evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass

UNSEEN_WORDINGS = 2


@dataclass(frozen=True, slots=True)
class Relation:
    """Facts of one kind: `pairs` maps a subject to its object."""

    name: str
    pairs: dict[str, str]
    answer: str  # with {subject} and {object}
    wordings: tuple[str, ...]


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for line in text.replace("\n", ";").split(";"):
        subject, colon, value = line.partition(":")
        if colon:
            pairs[subject.strip()] = value.strip()
    return pairs


CAPITALS = Relation(
    "capital",
    _pairs(
        """
        France: Paris; Italy: Rome; Spain: Madrid; Germany: Berlin; Portugal: Lisbon; Austria: Vienna
        Greece: Athens; Poland: Warsaw; Norway: Oslo; Sweden: Stockholm; Finland: Helsinki
        Denmark: Copenhagen; Ireland: Dublin; Hungary: Budapest; Belgium: Brussels; Russia: Moscow
        Ukraine: Kyiv; Turkey: Ankara; Egypt: Cairo; Kenya: Nairobi; Morocco: Rabat; Ghana: Accra
        Ethiopia: Addis Ababa; Japan: Tokyo; China: Beijing; India: Delhi; Thailand: Bangkok; Vietnam: Hanoi
        Indonesia: Jakarta; Nepal: Kathmandu; Iran: Tehran; Iraq: Baghdad; Canada: Ottawa
        Mexico: Mexico City; Cuba: Havana; Peru: Lima; Chile: Santiago; Brazil: Brasilia
        Argentina: Buenos Aires; Colombia: Bogota; Ecuador: Quito; Australia: Canberra; Iceland: Reykjavik
        Romania: Bucharest; Bulgaria: Sofia; Serbia: Belgrade; Croatia: Zagreb; Czechia: Prague
        Switzerland: Bern; England: London; Scotland: Edinburgh; Senegal: Dakar; Mongolia: Ulaanbaatar
        Jamaica: Kingston; Estonia: Tallinn
        """
    ),
    "The capital of {subject} is {object}.",
    (
        "Could you tell me the capital of {subject}?",
        "Which city is {subject}'s capital?",
        "What is the capital of {subject}?",
        "What's the capital of {subject}?",
        "Tell me the capital of {subject}.",
        "Can you tell me the capital city of {subject}?",
        "Capital of {subject}?",
        "Name the capital of {subject}.",
        "Which city is the capital of {subject}?",
        "What is {subject}'s capital?",
        "What is {subject}'s capital city?",
        "Do you know the capital of {subject}?",
        "{subject} has which capital?",
        "I need the capital of {subject}.",
        "{subject} capital?",
        "Capital city of {subject}",
        "{subject}'s capital?",
        "Which is the capital of {subject}?",
        "Do you know what {subject}'s capital is?",
        "Please say what the capital of {subject} is.",
        "The capital of {subject} is?",
        "What city is the capital of {subject}?",
        "Tell me what the capital of {subject} is.",
        "Capital of {subject}, please.",
    ),
)

SOUNDS = Relation(
    "sound",
    _pairs(
        """
        dog: woof; cat: meow; cow: moo; sheep: baa; pig: oink; duck: quack; lion: roar; horse: neigh
        rooster: cock-a-doodle-doo; frog: ribbit; owl: hoot; bee: buzz; snake: hiss; mouse: squeak
        crow: caw; wolf: howl; donkey: hee-haw; hen: cluck
        """
    ),
    "The {subject} says {object}.",
    (
        "Can you tell me what sound a {subject} makes?",
        "What does the {subject} say?",
        "What sound does a {subject} make?",
        "What does a {subject} say?",
        "What noise does a {subject} make?",
        "Which sound does the {subject} make?",
        "What sound does the {subject} make?",
        "How does a {subject} sound?",
        "Tell me the sound of a {subject}.",
        "Do you know what a {subject} says?",
        "Can you make the sound of a {subject}?",
        "What does a {subject} sound like?",
        "{subject} sound?",
        "Sound of a {subject}",
        "What noise does the {subject} make?",
        "What do {subject}s say?",
        "What sound do {subject}s make?",
    ),
)

BABIES = Relation(
    "baby",
    _pairs(
        """
        dog: puppy; cat: kitten; cow: calf; sheep: lamb; pig: piglet; duck: duckling; lion: cub; horse: foal
        hen: chick; frog: tadpole; goose: gosling; goat: kid; deer: fawn; swan: cygnet; kangaroo: joey
        owl: owlet; eagle: eaglet
        """
    ),
    "A baby {subject} is called a {object}.",
    (
        "How do you call a baby {subject}?",
        "Tell me what a young {subject} is called.",
        "What is a baby {subject} called?",
        "What do you call a baby {subject}?",
        "What is the young of a {subject} called?",
        "Name for a baby {subject}?",
        "What is a young {subject} called?",
        "Do you know what a baby {subject} is called?",
        "Tell me the name of a baby {subject}.",
        "What's the word for a baby {subject}?",
        "Can you tell me what a baby {subject} is called?",
        "What is a baby {subject}?",
        "Baby {subject}?",
        "A baby {subject} is called what?",
        "What are baby {subject}s called?",
        "What do you call the baby of a {subject}?",
        "What is the name of a baby {subject}?",
        "Name of a young {subject}?",
    ),
)

LEGS = Relation(
    "legs",
    _pairs(
        """
        dog: 4; cat: 4; cow: 4; sheep: 4; pig: 4; duck: 2; lion: 4; horse: 4; hen: 2; frog: 4; goose: 2
        spider: 8; ant: 6; bee: 6; snake: 0; fish: 0; crow: 2; wolf: 4; fox: 4; bear: 4; butterfly: 6
        crab: 10; owl: 2; rabbit: 4; worm: 0
        """
    ),
    "A {subject} has {object} legs.",
    (
        "Tell me how many legs a {subject} has.",
        "What number of legs does a {subject} have?",
        "How many legs does a {subject} have?",
        "How many legs has a {subject}?",
        "How many legs does the {subject} have?",
        "Number of legs of a {subject}?",
        "Do you know how many legs a {subject} has?",
        "What is the number of legs of a {subject}?",
        "Can you tell me how many legs a {subject} has?",
        "Count the legs of a {subject}.",
        "How many legs do {subject}s have?",
        "Legs of a {subject}?",
        "{subject} legs?",
        "How many legs are on a {subject}?",
        "How many legs does one {subject} have?",
    ),
)

COLOURS = Relation(
    "colour",
    _pairs(
        """
        grass: green; snow: white; blood: red; coal: black; milk: white; gold: yellow; sky: blue
        sun: yellow; lime: green; strawberry: red; orange: orange; chocolate: brown; lemon: yellow
        carrot: orange; tomato: red; night: black; cucumber: green; banana: yellow; cloud: white
        flamingo: pink; elephant: grey; frog: green; raven: black; sea: blue; plum: purple; ruby: red
        emerald: green; sapphire: blue; fox: red; bear: brown; swan: white; spinach: green
        """
    ),
    "The colour of {subject} is {object}.",
    (
        "Do you know what colour {subject} is?",
        "What's the color of {subject}?",
        "What colour is {subject}?",
        "What color is {subject}?",
        "What is the colour of {subject}?",
        "What is the color of {subject}?",
        "Tell me the colour of {subject}.",
        "Which colour is {subject}?",
        "Which color does {subject} have?",
        "What colour does {subject} have?",
        "Can you tell me the color of {subject}?",
        "Colour of {subject}?",
        "Color of {subject}",
        "What color is the {subject}?",
        "What colour is a {subject}?",
        "What is the color of a {subject}?",
        "What is the color of the {subject}?",
        "{subject} color?",
        "Which color is {subject}?",
    ),
)

OPPOSITES = Relation(
    "opposite",
    _pairs(
        """
        hot: cold; big: small; tall: short; fast: slow; happy: sad; light: dark; day: night; up: down
        left: right; old: young; full: empty; rich: poor; hard: soft; wet: dry; open: closed; early: late
        loud: quiet; strong: weak; good: bad; near: far; high: low; long: short; thick: thin; clean: dirty
        easy: difficult; first: last; inside: outside; love: hate; begin: end; true: false; win: lose
        buy: sell; push: pull; give: take; brave: afraid; cheap: expensive; deep: shallow; north: south
        east: west; summer: winter; sweet: sour; heavy: light; wide: narrow; always: never; friend: enemy
        cold: hot; small: big; slow: fast; sad: happy; dark: light; night: day; down: up; right: left
        young: old; empty: full; poor: rich; soft: hard; dry: wet; closed: open; late: early; quiet: loud
        weak: strong; bad: good; far: near; low: high; thin: thick; dirty: clean; difficult: easy
        last: first; outside: inside; hate: love; end: begin; false: true; lose: win
        """
    ),
    "The opposite of {subject} is {object}.",
    (
        "Can you give me the opposite of {subject}?",
        "Which word means the opposite of {subject}?",
        "What is the opposite of {subject}?",
        "What's the opposite of {subject}?",
        "Tell me the opposite of {subject}.",
        "Opposite of {subject}?",
        "Which word is the opposite of {subject}?",
        "Name the opposite of {subject}.",
        "Give me the opposite of {subject}.",
        "What word means the opposite of {subject}?",
        "Do you know the opposite of {subject}?",
        "Can you tell me the opposite of {subject}?",
        "{subject} opposite?",
        "What is opposite to {subject}?",
        "The opposite of {subject} is?",
        "What's {subject}'s opposite?",
        "I need the opposite of {subject}.",
        "Opposite of {subject}, please.",
    ),
)

PLURALS = Relation(
    "plural",
    _pairs(
        """
        mouse: mice; goose: geese; man: men; woman: women; child: children; foot: feet; tooth: teeth
        person: people; ox: oxen; leaf: leaves; knife: knives; wolf: wolves; sheep: sheep; fish: fish
        cat: cats; dog: dogs; fox: foxes; city: cities
        """
    ),
    "The plural of {subject} is {object}.",
    (
        "Can you give me the plural of {subject}?",
        "Which word is the plural of {subject}?",
        "What is the plural of {subject}?",
        "What's the plural of {subject}?",
        "Tell me the plural of {subject}.",
        "Plural of {subject}?",
        "Give me the plural of {subject}.",
        "Do you know the plural of {subject}?",
        "Name the plural of {subject}.",
        "Can you tell me the plural of {subject}?",
        "{subject} plural?",
        "What is the plural form of {subject}?",
        "More than one {subject}?",
        "One {subject}, two what?",
        "I need the plural of {subject}.",
        "Plural of the word {subject}?",
    ),
)

CONTINENTS = Relation(
    "continent",
    {
        country: continent
        for continent, countries in {
            "Europe": "France Italy Spain Germany Portugal Austria Greece Poland Norway Sweden Finland Denmark Ireland",
            "Africa": "Egypt Kenya Morocco Ghana Ethiopia Senegal",
            "Asia": "Japan China India Thailand Vietnam Indonesia Nepal Iran Iraq Mongolia",
            "North America": "Canada Mexico Cuba Jamaica",
            "South America": "Peru Chile Brazil Argentina Colombia Ecuador",
        }.items()
        for country in countries.split()
    },
    "{subject} is in {object}.",
    (
        "Do you know which continent {subject} is in?",
        "{subject} is on what continent?",
        "Which continent is {subject} in?",
        "What continent is {subject} in?",
        "On which continent is {subject}?",
        "In which continent does {subject} lie?",
        "Which continent is {subject} on?",
        "What continent is {subject} on?",
        "Tell me the continent of {subject}.",
        "Name the continent of {subject}.",
        "Can you tell me which continent {subject} is on?",
        "Where in the world is {subject}?",
        "Where is {subject}?",
        "{subject} continent?",
        "Continent of {subject}?",
        "To which continent does {subject} belong?",
        "What continent does {subject} belong to?",
        "Where is {subject} on the map?",
        "What part of the world is {subject} in?",
    ),
)

RELATIONS = (CAPITALS, SOUNDS, BABIES, LEGS, COLOURS, OPPOSITES, PLURALS, CONTINENTS)
