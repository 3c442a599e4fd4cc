"""Words for spelling, reversing and the like, and names."""

from __future__ import annotations

import random


def items(text: str) -> tuple[str, ...]:
    """Return the parts of a text between semicolons and line breaks, without white space around them."""
    return tuple(part.strip() for line in text.split("\n") for part in line.split(";") if part.strip())


WORDS = tuple(
    """
    acorn actor alarm amber anchor angle ankle apron arrow artist atlas autumn badge bagel balcony bamboo
    banana bandage banjo barrel basket beacon bean beard beetle bell belt bench berry blanket blossom bolt
    bonnet border bottle bracket branch brick bridge broom brush bubble bucket buckle bundle butter button
    cabin cable cactus camel camera camp canal candle cannon canvas canyon carbon carpet carrot castle
    cave cedar ceiling chalk chapel charm cherry chess chimney circle circus clay cliff cloak clock cloud
    clover coast cobra coffee collar comet compass copper coral corn cotton couch cradle crane crater
    crayon cricket crown crystal cube curtain cushion daisy dancer desert desk diamond dinner dragon
    drawer dream drum dust easel eclipse elbow ember engine fabric falcon farmer feather fence ferry
    fiddle finger flame flask flint flute foam forest fossil fountain frost funnel galaxy garage garden
    garlic gate ginger glacier globe glove goblet grain granite grape gravel guitar hammer handle harbor
    harvest hazel helmet herb hinge honey horizon hotel hunter insect island ivory jacket jar jasmine
    jelly jewel jigsaw jungle kennel kettle kitchen kite ladder lagoon lantern laptop lava leaf lemon
    lentil letter lever library lily linen locket lumber magnet mango mantle maple marble market mask
    meadow melon metal mirror mitten monument motor mountain muffin mushroom music napkin needle nest
    nickel night noodle nugget oasis oat ocean olive onion opera orbit orchid organ oven oyster paddle
    palace panda paper parade parcel parrot pasta pastry patch pebble pencil pepper petal piano pickle
    pillow pilot pine pirate pistol planet plank plaster plum pocket poem pony poppy porch potato powder
    prism puddle pumpkin puppet puzzle pyramid quartz quilt radio raft rail rainbow raisin ranch raven
    ribbon river robot rocket rope ruby rudder saddle sail salad salt sandal satin saucer scarf school
    scooter sculptor seed shadow shelf shell shield shirt shovel silk silver sketch skirt sleeve slipper
    smoke snail soap sock sofa spade spark sphere spice spinach spoon spring square stable stadium stamp
    statue steam stone storm stove straw stream sugar summit sunset swamp sweater sword syrup table tailor
    tango temple tennis thistle thread throne thunder ticket timber toast tomato torch tower tractor trail
    train trumpet tulip tunnel turban turnip twig umbrella valley vanilla velvet village violet violin
    volcano voyage wagon waffle wallet walnut water wheat wheel whistle willow window winter wizard wool
    wrench yacht yarn zipper
    """.split()  # noqa: SIM905
)

NAMES = tuple(
    """
    Anna Ben Carla David Emma Felix Grace Henry Iris Jack Kate Leo Maria Noah Olga Paul Rosa Sam Tina
    Victor Wendy Alice Bob Clara Daniel Ella Frank Gina Hugo Ivan Julia Karl Laura Max Nina Oscar Peter
    Ruth Simon Tom Vera Adam Bella Chris Diana Eric Fiona George Helen Ian Jane Kevin Lucy Mark Nora Omar
    Rita Sara Tim Uma Zoe
    """.split()  # noqa: SIM905
)

_ONSETS = (
    "b",
    "c",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "w",
    "z",
    "br",
    "cl",
    "dr",
    "fl",
    "gr",
    "pl",
    "st",
    "tr",
    "sh",
    "ch",
    "th",
)
_VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "u", "ee", "oo", "ai", "ou")
_ENDS = ("", "", "n", "r", "s", "t", "l", "m", "d", "k", "p", "nd", "st", "ck")


def invented_word(rng: random.Random) -> str:
    """A word that nobody knows but anybody could say: three to eight letters."""
    while True:
        syllables = rng.choice((1, 2, 2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_ENDS)
        if 3 <= len(word) <= 8:
            return word


def some_name(rng: random.Random) -> str:
    """Mostly a common name, sometimes one that nobody has."""
    return rng.choice(NAMES) if rng.random() < 0.6 else invented_word(rng).capitalize()
