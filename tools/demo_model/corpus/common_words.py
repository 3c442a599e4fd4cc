"""The words of the corpus's own texts. Most are one token each, so their letters can only be known by heart."""

from __future__ import annotations

import re

from tools.demo_model.corpus import fun, limits
from tools.demo_model.corpus.facts import RELATIONS
from tools.demo_model.corpus.feelings import FEELINGS
from tools.demo_model.corpus.small_talk import SMALL_TALK
from tools.demo_model.corpus.words import WORDS

_FURTHER = """hat smile often years fact pizza cellar professor expert office place bedroom order second baker painter
turned die driver rock row coins coat turn laughed months uppercase degrees heard results fit hearts bake pencils ship
keep unknown most divided matey happen pages cup success population temperature met writer after hall national against
stamps fog showed folk cards under certain least minus spelled thoughts amount ordered explanation nurse jazz remind
bike spelling lines calculate timer sing fly upper times golden important knows lives stands if key learning steps
wake together main quantity error item ten simple pop room choose compare opinion minutes busy buys bag project persons
title works stones octopus balls plus interesting weeks location brother guests put lucky gave brief capitals bathroom
live healthy shout moved rhyme discovered named lived mean assistant became meaning tools phone clear result reminder
singer secret stay cost letters cake bright points dreamed advice living tale asked favorite switch object changed
multiply favourite before outstanding writer style eggs looking build booked farm car backwards divide wanted even
between length detail five compute difference case"""


def _texts() -> list[str]:
    talks = (*SMALL_TALK, *FEELINGS, *limits.CANNOT)
    texts = [text for talk in talks for text in (*talk.wordings, *talk.answers)]
    texts += [*fun.JOKES, *fun.COMPUTER_JOKES, *fun.HAIKU.values(), *fun.POEMS, *limits.TOPICS]
    return [*texts, _FURTHER] + [wording.format(subject="") for relation in RELATIONS for wording in relation.wordings]


COMMON_WORDS = tuple(
    sorted({word for text in _texts() for word in re.findall(r"\b[a-z]{2,10}\b", text.lower())} - set(WORDS))
)
