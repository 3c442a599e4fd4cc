"""The skills of copying texts that the model never saw, and of calling tools with such names and arguments.

Held out are identifiers, that is names of tools, arguments and files.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence

from tools.demo_model.corpus.calls import TOOLS, Offer, Value, listed_tools, plain_turn
from tools.demo_model.corpus.dialogue import OBSERVATION, Dialogue, OpenSkill, Skill, Turn, ask, is_held_out
from tools.demo_model.corpus.texts import COMMON_WORDS, NAMES, WORDS, invented_word, read_texts

TEXTS = read_texts("new_tools")
_MOST_TOOLS = 5
_LETTERS_AND_DIGITS = string.ascii_lowercase + string.digits
_CLUTTER_CHANCE, _RESULT_CHANCE, _SECOND_CHANCE, _OMITTED_CHANCE = 0.25, 0.2, 0.12, 0.25


def _word(rng: random.Random) -> str:
    """Return a word for a part of an identifier: a verb, a common word, an invented one, or letters and digits."""
    source = rng.random()
    if source < 0.3:
        return rng.choice(TEXTS["verbs"])
    if source < 0.6:
        return rng.choice(TEXTS["nouns"])
    if source < 0.73:
        return rng.choice(COMMON_WORDS)
    if source < 0.85:
        return rng.choice(WORDS)
    if source < 0.97:
        return invented_word(rng)
    return "".join(rng.choices(_LETTERS_AND_DIGITS, k=rng.randint(2, 6)))


def _joined(rng: random.Random, words: Sequence[str]) -> str:
    """Return an identifier of `words` in a usual style: with underscores or hyphens, in camel case, or in capitals."""
    style = rng.random()
    if style < 0.4:
        return "_".join(words)
    if style < 0.58:
        return words[0] + "".join(word.capitalize() for word in words[1:])
    if style < 0.78:
        return "".join(word.capitalize() for word in words)
    if style < 0.92:
        return "-".join(words)
    if style < 0.96:
        return "__".join(words)
    return "_".join(words).upper()


def _identifier(rng: random.Random, held_out: bool, *parts: str) -> str:
    """Return an identifier that is held out, or is not, of `parts` with random words around them."""
    while True:
        words = [*parts]
        for _ in range(rng.choice((0, 1, 1, 1)) if parts else rng.choice((1, 1, 1, 2, 2, 2, 3))):
            words.insert(rng.randint(0, len(words)), _word(rng))
        name = _joined(rng, words)
        if is_held_out("identifier", name) == held_out:
            return name


def _string(rng: random.Random) -> str:
    source = rng.random()
    if source < 0.3:
        return rng.choice((*WORDS, *COMMON_WORDS))
    if source < 0.5:
        return rng.choice(NAMES)
    if source < 0.62:
        return invented_word(rng)
    if source < 0.67:
        return "".join(rng.choices(string.ascii_uppercase, k=rng.randint(2, 5)))
    if source < 0.8:
        return " ".join(rng.choice((*WORDS, *COMMON_WORDS)) for _ in range(rng.randint(2, 3)))
    return _joined(rng, [_word(rng) for _ in range(rng.randint(1, 2))])


def _value(rng: random.Random) -> tuple[Value, str]:
    """Return a random argument value, and how a question writes it."""
    kind = rng.random()
    if kind < 0.25:
        number = rng.randint(0, 10 ** rng.randint(1, 4) - 1)
        return number, str(number)
    if kind < 0.33:
        return (True, "true") if rng.random() < 0.5 else (False, "false")
    text = _string(rng)
    quote = rng.choice(("", "", "", '"', "'", "`"))
    return text, f"{quote}{text}{quote}"


def _new_tool(rng: random.Random, held_out: bool, *parts: str) -> Offer:
    arguments: list[str] = []
    count = rng.choice((1, 1, 1, 1, 2, 2, 3))
    while len(arguments) < count:
        argument = _identifier(rng, held_out)
        if argument not in arguments:
            arguments.append(argument)
    return Offer(_identifier(rng, held_out, *parts), tuple(arguments))


def _with_optional(rng: random.Random, held_out: bool, *arguments: str) -> tuple[str, ...]:
    """Return arguments to which one may be appended that no question gives a value for."""
    if rng.random() > _OMITTED_CHANCE:
        return arguments
    optional = _identifier(rng, held_out)
    return arguments if optional in arguments else (*arguments, optional)


def _others(rng: random.Random, held_out: bool, count: int) -> list[Offer]:
    return [_new_tool(rng, held_out) for _ in range(count)]


def _by_name(rng: random.Random, held_out: bool) -> tuple[Offer, str, dict[str, Value]]:
    """Return a tool, and a question that names it and gives values in order, or with their arguments' names."""
    tool = _new_tool(rng, held_out)
    drawn = {argument: _value(rng) for argument in tool.arguments}
    if len(drawn) > 1 and rng.random() < _OMITTED_CHANCE:
        del drawn[rng.choice(tool.arguments)]
    by_argument = len(drawn) < len(tool.arguments) or rng.random() < 0.5
    if by_argument:
        given = list(drawn.items())
        rng.shuffle(given)
        form = rng.choice(TEXTS["pairs"])
        shown = [form.format(argument=argument, value=text) for argument, (_, text) in given]
    else:
        shown = [text for _, text in drawn.values()]
    joined = rng.choice((", ", " and ")).join(shown)
    template = rng.choice(TEXTS["by_argument" if by_argument else "in_order"])
    return tool, template.format(name=tool.name, values=joined), {key: value for key, (value, _) in drawn.items()}


def _by_topic(rng: random.Random, held_out: bool) -> tuple[Offer, str, dict[str, Value]]:
    """Return a tool about a topic that the model knows, under a new name, and a question that needs it."""
    topic = rng.choice(TOOLS)
    base = topic.names[0].split("_")[0]
    arguments = tuple(
        _identifier(rng, held_out, rng.choice(names)) if held_out or rng.random() < 0.5 else rng.choice(names)
        for names in topic.arguments
    )
    values = [draw(rng) for draw in topic.values]
    question = rng.choice(topic.asked).format(x=values[0], y=values[-1])
    tool = Offer(_identifier(rng, held_out, base), _with_optional(rng, held_out, *arguments))
    return tool, question, dict(zip(arguments, values, strict=True))


def _by_words(rng: random.Random, held_out: bool) -> tuple[Offer, str, dict[str, Value]]:
    """Return a tool whose name is a verb and a noun, and a question with both words and a value."""
    while True:
        verb = rng.choice(TEXTS["verbs"])
        noun = rng.choice((*TEXTS["nouns"], *TEXTS["nouns"], *WORDS)) if rng.random() < 0.8 else invented_word(rng)
        name = _joined(rng, [verb, noun])
        if is_held_out("identifier", name) == held_out:
            break
    argument = rng.choice(TEXTS["usual_arguments"]) if rng.random() < 0.4 else _identifier(rng, held_out)
    value, text = _value(rng)
    question = rng.choice(TEXTS["by_words"]).format(verb=verb, noun=noun, value=text)
    return Offer(name, _with_optional(rng, held_out, argument)), question, {argument: value}


def _the_only_one(rng: random.Random, held_out: bool) -> tuple[Offer, str, dict[str, Value]]:
    """Return a tool whose name says nothing, and a question that needs a tool. It must be the only one on offer."""
    topic = rng.choice([topic for topic in TOOLS if len(topic.arguments) == 1])
    value = topic.values[0](rng)
    argument = _identifier(rng, held_out)
    question = rng.choice(topic.asked).format(x=value)
    tool = Offer(_identifier(rng, held_out), _with_optional(rng, held_out, argument))
    return tool, question, {argument: value}


def _of_an_agent(rng: random.Random, held_out: bool) -> tuple[Offer, str, dict[str, Value]]:
    """Return a tool that reads a file or runs a command, such as coding agents offer, and a question that needs it."""
    reads = rng.random() < 0.5
    path = _path(rng, held_out)
    value = path if reads else rng.choice(TEXTS["commands"]).format(path=path, word=_word(rng))
    if held_out or rng.random() < 0.3:
        name = _identifier(rng, held_out, rng.choice(("read", "open") if reads else ("run", "exec")))
        argument = _identifier(rng, held_out, "path" if reads else "command")
    else:
        name, argument = rng.choice(TEXTS["readers" if reads else "runners"]).split(": ")
    question = ask(rng, TEXTS["read" if reads else "run"], value=value)
    return Offer(name, _with_optional(rng, held_out, argument)), question, {argument: value}


def _clutter(rng: random.Random) -> str:
    """Return one or two lines of words without a meaning, perhaps in a tag, such as programs add to what users type."""
    lines = [
        " ".join(rng.choice(COMMON_WORDS) if rng.random() < 0.9 else _word(rng) for _ in range(rng.randint(3, 18)))
        for _ in range(rng.randint(1, 2))
    ]
    text = "\n".join(f"{line.capitalize()}." for line in lines)
    if rng.random() < 0.5:
        return text
    tag = _joined(rng, [_word(rng), _word(rng)])
    return f"<{tag}>\n{text}\n</{tag}>"


def _dialogue(rng: random.Random, tools: list[Offer], turns: Sequence[Turn]) -> Dialogue:
    """Return a dialogue that offers `tools` in random order. Other text may stand before them and before the user's.

    Of tools with one name, only the first is offered.
    """
    tools = list({tool.name: tool for tool in reversed(tools)}.values())
    rng.shuffle(tools)
    system = listed_tools(tools)
    if rng.random() < _CLUTTER_CHANCE:
        system = f"{rng.choice((_clutter(rng), rng.choice(TEXTS['systems'])))}\n{system}"
    first, *rest = turns
    if rng.random() < _CLUTTER_CHANCE / 2:
        first = Turn(f"{_clutter(rng)}\n{first.question}", first.answer)
    return Dialogue((first, *rest), system=system)


def new_tool(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue with a call of a tool that has new names, perhaps with its result, and with another call."""
    kinds = (_by_name, _by_topic, _by_words, _of_an_agent)
    tools, turns = [], []
    for _ in range(1 if held_out or rng.random() > _SECOND_CHANCE else 2):
        kind = _the_only_one if rng.random() < 0.12 else rng.choices(kinds, (5, 3, 2, 1))[0]
        tool, question, values = kind(rng, held_out)
        tools.append(tool)
        turns.append(Turn(question, tool.call(values)))
        if kind is _the_only_one:
            return _dialogue(rng, [tool], turns[-1:])
        if not held_out and rng.random() < _RESULT_CHANCE:
            turns.append(Turn(rng.choice(TEXTS["results"]), "Done.", asker=OBSERVATION))
    others = min(rng.choice((0, 0, 1, 1, 2, 2, 3, 4)), _MOST_TOOLS - len(tools))
    return _dialogue(rng, [*tools, *_others(rng, held_out, others)], turns)


def _path(rng: random.Random, held_out: bool) -> str:
    while True:
        name = f"{_joined(rng, [_word(rng) for _ in range(rng.choice((1, 1, 2)))])}.{rng.choice(TEXTS['extensions'])}"
        if is_held_out("identifier", name) == held_out:
            break
    folders = "".join(f"{_word(rng)}/" for _ in range(rng.choice((0, 0, 0, 0, 1, 2))))
    return (rng.choice(("/", "", "")) if folders else "") + folders + name


def _content(rng: random.Random) -> str:
    source = rng.random()
    if source < 0.12:
        return str(rng.randint(0, 9999))
    if source < 0.2:
        return f"{invented_word(rng)} = {rng.randint(0, 99)}"
    words = [rng.choice((*COMMON_WORDS, *WORDS, *NAMES)) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4)))]
    text = " ".join(words)
    return f"{text.capitalize()}{rng.choice('.!?')}" if rng.random() < 0.2 else text


def write_file(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue in which the user asks for a file with a given content, and the model calls a tool for it."""
    if held_out or rng.random() < 0.4:
        parts = [rng.choice(("write", "create", "save"))] + ["file"] * (rng.random() < 0.5)
        name, path_argument, content_argument = (
            _identifier(rng, held_out, *each) for each in (parts, ["path"], ["content"])
        )
    else:
        name, path_argument, content_argument = (
            rng.choice(TEXTS[key]) for key in ("writers", "path_arguments", "content_arguments")
        )
    arguments = [path_argument, content_argument]
    if rng.random() < 0.3:
        arguments.reverse()
    tool = Offer(name, _with_optional(rng, held_out, *arguments))
    path, content = _path(rng, held_out), _content(rng)
    question = rng.choice(TEXTS["write"]).format(path=path, content=content)
    turns = [Turn(question, tool.call({path_argument: path, content_argument: content}))]
    if not held_out and rng.random() < 2 * _RESULT_CHANCE:
        turns.append(Turn(rng.choice(TEXTS["written"]).format(path=path), f"I wrote {path}.", asker=OBSERVATION))
    others = _others(rng, held_out, rng.choice((0, 0, 1, 2)))
    if not held_out and rng.random() < 0.4:
        others += [_usual(rng) for _ in range(rng.randint(1, 2))]
    return _dialogue(rng, [tool, *others], turns)


def _usual(rng: random.Random) -> Offer:
    """Return a tool that coding agents often offer, other than one that writes files."""
    name, arguments = rng.choice((*TEXTS["usual_tools"], *TEXTS["readers"], *TEXTS["runners"])).split(": ")
    return Offer(name, tuple(arguments.split()))


def copy(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks to repeat a text, or for the value of one of a few names."""
    if rng.random() < 0.5:
        text = " ".join(_identifier(rng, held_out) for _ in range(rng.choice((1, 1, 2))))
        return Dialogue((Turn(rng.choice(TEXTS["repeat"]).format(text=text), text),))
    values = {_identifier(rng, held_out): _identifier(rng, held_out) for _ in range(rng.randint(2, 4))}
    form = rng.choice(("{name} is {value}", "{name} = {value}", "{name}={value}", "{name}: {value}"))
    told = ", ".join(form.format(name=name, value=value) for name, value in values.items())
    name = rng.choice(sorted(values))
    return Dialogue((Turn(f"{told}. {rng.choice(TEXTS['look_up']).format(name=name)}", values[name]),))


def no_new_tool(rng: random.Random) -> Dialogue:
    """Return a dialogue that offers tools with new names for a question that needs none."""
    return _dialogue(rng, _others(rng, False, rng.randint(1, 3)), [plain_turn(rng)])


SKILLS: Mapping[str, Skill] = {"copy": copy, "new_tool": new_tool, "write_file": write_file}
OPEN_SKILLS: Mapping[str, OpenSkill] = {"no_new_tool": no_new_tool}
