"""Jinja templates: their inputs, and that none uses too much time or memory or escapes its sandbox."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import SupportsIndex

import pytest

from rnn_engine.chat_template import ChatMessage, Conversation, Role, Tool, ToolCall
from rnn_engine.chat_template import jinja as sandbox
from rnn_engine.chat_template.jinja import JinjaTemplate
from rnn_engine.chat_template.tools import ToolFormats
from rnn_engine.errors import InvalidRequestError, ModelError

CHATML = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' ~ message.role + '\n' + message['content'] | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
HI = Conversation([ChatMessage(Role.USER, "Hi")])
WEATHER = Tool("weather", "Of a city.", {"type": "object", "properties": {"city": {"type": "string"}}})


def counted(render: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: CountedText(render(*args))


def render(source: str, conversation: Conversation = HI, most: int = 10_000) -> str:
    return JinjaTemplate(source, {"bos_token": "<s>"}).render(conversation, most).text


def test_messages_and_special_tokens() -> None:
    messages = [ChatMessage(Role.SYSTEM, "S "), ChatMessage(Role.USER, "Hi"), ChatMessage(Role.OBSERVATION, "4")]
    assert render(CHATML, Conversation(messages)) == (
        "<s><|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>tool\n4<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_ends_of_turns_are_what_shorter_conversations_have_too() -> None:
    messages = [ChatMessage(Role.USER, "Hi"), ChatMessage(Role.ASSISTANT, "Ho"), ChatMessage(Role.USER, "Bye")]
    rendered = JinjaTemplate(CHATML, {}).render(Conversation(messages), 1000)
    assert list(rendered.turn_ends) == [1, 2, 3]
    ends = [rendered.text[:end] for end in rendered.turn_ends.values()]
    assert [end.count("<|im_end|>\n") for end in ends] == [1, 2, 3]
    assert all(end.endswith("<|im_end|>\n") for end in ends)


class CountedText(str):
    """A text that counts how often a part of it is read."""

    takes = 0

    def __getitem__(self, key: SupportsIndex | slice, /) -> str:
        CountedText.takes += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("common", [0, 1, 99_999, 100_000])
def test_the_common_beginning_of_long_texts_is_found_in_few_steps(common: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"{{{{ messages[0].content[:{common}] }}}}{{{{ 'x' if add_generation_prompt else 'y' }}}}"
    monkeypatch.setattr(sandbox, "render_bounded", counted(sandbox.render_bounded))
    CountedText.takes = 0
    conversation = Conversation([ChatMessage(Role.USER, "é" * 100_000)])
    rendered = JinjaTemplate(source, {}).render(conversation, 200_000)
    assert rendered.turn_ends == {1: common}
    assert CountedText.takes < 100


def test_a_long_conversation_is_rendered_few_times() -> None:
    messages = [ChatMessage(Role.USER, str(number)) for number in range(50)]
    assert len(JinjaTemplate(CHATML, {}).render(Conversation(messages), 10_000).turn_ends) <= 8


def test_a_beginning_that_the_template_refuses_has_no_end() -> None:
    source = "{% if messages[-1].role != 'user' %}{{ raise_exception('ask') }}{% endif %}{{ messages | length }}"
    messages = [ChatMessage(Role.USER, "a"), ChatMessage(Role.ASSISTANT, "b"), ChatMessage(Role.USER, "c")]
    rendered = JinjaTemplate(source, {}).render(Conversation(messages), 100)
    assert rendered.text == "3"
    assert 2 not in rendered.turn_ends


@pytest.mark.parametrize(
    ("variables", "ending"),
    [({}, "assistant\n"), ({"enable_thinking": False}, "</think>\n\n"), ({"reasoning_effort": "none"}, "</think>\n\n")],
)
def test_thinking_is_switched_by_variables(variables: dict[str, object], ending: str) -> None:
    assert render(CHATML, Conversation(HI.messages, variables=variables)).endswith(ending)


def test_an_answer_is_continued() -> None:
    messages = [ChatMessage(Role.USER, "Hi"), ChatMessage(Role.ASSISTANT, "I am ")]
    assert render(CHATML, Conversation(messages, continues=True)).endswith("<|im_start|>assistant\nI am ")
    with pytest.raises(InvalidRequestError, match="can't continue an answer"):
        render("{{ messages | length }}", Conversation(messages, continues=True))


def test_tools_and_calls() -> None:
    source = (
        "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
        "{% for call in messages[0].tool_calls %}<tool_call>{{ call.function.arguments.city }}{% endfor %}"
    )
    call = ToolCall("weather", '{"city": "Köln <3"}', "call_1")
    conversation = Conversation([ChatMessage(Role.ASSISTANT, "", (call,))], [WEATHER])
    assert render(source, conversation) == (
        '{"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": '
        '{"type": "object", "properties": {"city": {"type": "string"}}}}}<tool_call>Köln <3'
    )
    assert JinjaTemplate(source, {}).tool_format is ToolFormats.TAGGED.value


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, "a:string;a"),
        ({"properties": {"a": None, "b": "x", "c": True}, "required": None}, "a:;b:;c:;"),
        *(({"properties": wrong, "required": wrong}, "") for wrong in (None, 3, "x", True)),
    ],
)
def test_a_template_can_walk_over_any_parameters(parameters: dict[str, object], text: str) -> None:
    source = (
        "{% for name, value in tools[0].function.parameters.properties.items() %}{{ name }}:{{ value.type }};"
        "{% endfor %}{% for name in tools[0].function.parameters.required %}{{ name }}{% endfor %}"
    )
    assert render(source, Conversation(HI.messages, [Tool("f", "", parameters)])) == text


@pytest.mark.parametrize("separator", ["|items", ".items()"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        *(('{"a": 1, "b": "x"}', "a=1;b=x;"), ("{}", ""), ("", ""), (" ", ""), ("null", ""), ("[]", "")),
        *(
            (each, f"arguments={each};")
            for each in ('{"a":', '{"p":"a"}{"p":"b"}', "[1, 2]", "3", '"a"', "text", "NaN")
        ),
    ],
)
def test_arguments_of_a_call_are_always_pairs(separator: str, arguments: str, text: str) -> None:
    source = (
        "{% for call in messages[0].tool_calls %}{% for name, value in call.function.arguments"
        + separator
        + " %}{{ name }}={{ value }};{% endfor %}{% endfor %}"
    )
    assert render(source, Conversation([ChatMessage(Role.ASSISTANT, "", (ToolCall("f", arguments),))])) == text


def test_a_template_that_knows_no_tools_gets_them_in_the_system_text() -> None:
    assert render(CHATML, Conversation(HI.messages, [WEATHER])).startswith("<s><|im_start|>system\nYou may call")
    with_system = [ChatMessage(Role.SYSTEM, "Be brief."), *HI.messages]
    assert render(CHATML, Conversation(with_system, [WEATHER])).startswith(
        "<s><|im_start|>system\nBe brief.\n\nYou may"
    )


@pytest.mark.parametrize(
    ("source", "format_"),
    [
        ("{{ tools }}<tool_call>", ToolFormats.TAGGED),
        ("{{ messages }}", ToolFormats.TAGGED),
        ('{{ tools }}{"name": x, "parameters": y}', ToolFormats.JSON_PARAMETERS),
        ("{{ tools }}", ToolFormats.JSON),
    ],
)
def test_the_form_of_calls_is_guessed(source: str, format_: ToolFormats) -> None:
    assert JinjaTemplate(source, {}).tool_format is format_.value


@pytest.mark.parametrize(
    ("end", "source", "stop"),
    [("<|im_end|>", CHATML, ()), ("\n\n", CHATML, ("\n\n",)), ("", "User: Hi\n\nAssistant:", ("\n\n",))],
)
def test_what_ends_an_answer(end: str, source: str, stop: tuple[str, ...]) -> None:
    assert JinjaTemplate(source, {"eos_token": end}).render(HI, 1000).stop == stop


def test_tags_of_transformers() -> None:
    assert render("{% generation %}a{% endgeneration %}{% for x in [1, 2, 3] %}{% break %}{% endfor %}") == "a"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    today = datetime.now()
    assert render("{{ date_string }}") == today.strftime("%d %b %Y")
    assert render("{{ datetime }}") == today.strftime("%b %d %Y")
    assert render("<{{ functions }}>") == "<>"
    assert render("{{ {'a': '<é>'} | tojson(indent=2) }}") == '{\n  "a": "<é>"\n}'
    assert render("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}") == '{"a":2,"b":1}'


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 'x'.encode() * 1000000000 }}",
        "{{ 7 ** 2 }}",
        "{% set n = namespace(x=2) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ range(1000000000) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no') }}",
        "{{ messages[7].content.x }}",
    ],
)
def test_a_template_that_takes_too_much_or_reaches_out_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="messages that the chat template accepts"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' if i is sequence or messages[0].x }}{% endfor %}"
        "{% endfor %}",
        "{% for i in range(99999 * (not add_generation_prompt)) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_takes_too_long_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.05)
    with pytest.raises(InvalidRequestError, match=r"messages that the chat template renders within 0\.05 s"):
        render(source)


def test_a_time_limit_that_was_kept_interrupts_nothing() -> None:
    for _ in range(1000):
        with suppress(sandbox._SlowError), sandbox._time_limit(0.0):
            pass
        sum(range(100))  # an interrupt that came late would end it


def test_values_that_a_template_makes_are_what_they_are_in_jinja() -> None:
    source = (
        "{% set a = [1, (2, 'x'), {'k': [messages[0].role]}] %}{{ a }}{{ a + [3] }}{{ a[1:] }}{{ a[1] + (4,) }}"
        "{{ a is sequence }}{{ a[2] is mapping }}{{ a | tojson }}{{ {(1, 2): 3}[(1, 2)] }}"
        "{% set x, y = 1, [2] %}{{ y }}{{ a == [1, (2, 'x'), {'k': ['user']}] }}{{ 'x' in a[1] }}"
        "{{ 'abc'[::-1] }}{{ dict(a=1) }}{{ a[2].items() | list }}"
    )
    assert render(source) == (
        "[1, (2, 'x'), {'k': ['user']}][1, (2, 'x'), {'k': ['user']}, 3][(2, 'x'), {'k': ['user']}](2, 'x', 4)TrueTrue"
        "[1, [2, \"x\"], {\"k\": [\"user\"]}]3[2]TrueTruecba{'a': 1}[('k', ['user'])]"
    )


def test_fields_of_a_templates_own_dicts_have_any_name() -> None:
    assert render("{% set d = {'size': messages[0].role, 'levels': 2} %}{{ d.size }}{{ d.levels }}") == "user2"


def test_a_prompt_is_bounded_while_it_is_made() -> None:
    with pytest.raises(InvalidRequestError, match="a prompt of at most 500 characters"):
        render("{% for i in range(1000) %}{{ 'a' * 100 }}{% endfor %}", most=500)


@pytest.mark.parametrize(
    "source", ["{% if %}", "{% for x in y %}" * 30 + "{% endfor %}" * 30, "{% endfor %}", "x" * (2**20 + 1)]
)
def test_what_is_no_template_is_refused_when_the_model_is_loaded(source: str) -> None:
    with pytest.raises(ModelError, match="the chat template"):
        JinjaTemplate(source, {})
