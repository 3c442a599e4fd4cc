"""The prompts of World's template. Their size is bounded before they are built."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.chat_template import ChatMessage, Conversation, Role, Tool, ToolCall, WorldTemplate, find_role
from rnn_engine.chat_template.conversation import clean
from rnn_engine.chat_template.tools import ToolFormats
from rnn_engine.errors import InvalidRequestError

texts = st.lists(
    st.sampled_from(["{role}", "{content}", "{user}", "{assistant}", "{x}", "\n\n", "a", "é", " "]), max_size=5
).map("".join)
templates = st.builds(
    WorldTemplate,
    record=texts.map(lambda text: text + "{content}"),
    prefix=texts,
    sep=texts,
    names=st.dictionaries(st.sampled_from(Role), texts),
)
conversations = st.lists(st.builds(ChatMessage, st.sampled_from(Role), texts), max_size=4)


@given(st.text(st.sampled_from("\n\n\n \t\r\x1c\x85\u2028\u3000ab"), max_size=30))
def test_runs_of_blank_lines_become_one_line_break(text: str) -> None:
    assert clean(text) == re.sub(r"\n\s*\n", "\n", text).strip()


@given(templates, conversations)
def test_no_prompt_is_longer_than_its_bound(template: WorldTemplate, messages: Sequence[ChatMessage]) -> None:
    conversation = Conversation(messages, variables={"enable_thinking": True, "reasoning_effort": "high"})
    bound = template.most_characters(conversation)
    assert len(template.render(conversation, bound).text) <= bound


def test_the_bound_of_the_usual_template_is_near() -> None:
    messages = [ChatMessage(Role.USER, "Hello, who are you?"), ChatMessage(Role.ASSISTANT, "A model.")] * 10
    template = WorldTemplate()
    bound = template.most_characters(Conversation(messages))
    assert bound < 2 * len(template.render(Conversation(messages), bound).text)


def test_a_bound_of_gigabytes_is_found_without_building_them() -> None:
    template = WorldTemplate(record="{content}" * 100_000, prefix="{user}" * 100_000, names={Role.USER: "x" * 100_000})
    conversation = Conversation([ChatMessage(Role.USER, "a" * 1_000_000)])
    assert template.most_characters(conversation) > 10**11
    with pytest.raises(InvalidRequestError, match="a prompt of at most 1000000 characters"):
        template.render(conversation, 1_000_000)


def test_a_long_separator_follows_a_short_text() -> None:
    template = WorldTemplate(sep="\n" * 1_000_000)
    assert len(template.follow("text\n\n")) == 1_000_000 - 2


WEATHER = Tool("weather", "The weather of a city.", {"type": "object", "properties": {"city": {"type": "string"}}})
TIMER = Tool("timer", parameters={"type": "object", "properties": {"minutes": {"type": "integer"}, "name": {}}})


def render(conversation: Conversation, template: WorldTemplate | None = None) -> str:
    return (template or WorldTemplate()).render(conversation, 10_000).text


def test_signatures_of_tools_begin_the_system_text() -> None:
    template = WorldTemplate(tool_format=ToolFormats.SIGNATURES.value)
    question = ChatMessage(Role.USER, "Rain?")
    call = ToolCall("weather", '{"city":"Paris"}', "call_1")
    result = ChatMessage(Role.OBSERVATION, "dry", name="weather")
    answered = [question, ChatMessage(Role.ASSISTANT, "", (call,)), result]
    assert render(Conversation(answered, [WEATHER, TIMER]), template) == (
        "System: Tools: weather(city), timer(minutes, name)\n\nUser: Rain?\n\n"
        'Assistant: {"name": "weather", "arguments": {"city": "Paris"}}\n\nObservation: dry\n\nAssistant:'
    )
    with_system = [ChatMessage(Role.SYSTEM, "Be brief. "), question]
    assert render(Conversation(with_system, [TIMER]), template).startswith(
        "System: Be brief.\nTools: timer(minutes, name)\n\nUser:"
    )


def test_tagged_tools_are_told_with_their_schemas() -> None:
    calls = (ToolCall("weather", '{"city": "Rome"}'), ToolCall("timer", "no JSON"))
    text = render(Conversation([ChatMessage(Role.ASSISTANT, "Both.", calls)], [WEATHER], answers=False))
    assert (
        '<tools>\n{"type": "function", "function": {"name": "weather", "description": "The weather of a city."' in text
    )
    assert text.endswith(
        'Assistant: Both.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "timer", "arguments": "no JSON"}\n</tool_call>\n\n'
    )


def test_the_ends_of_turns() -> None:
    messages = [ChatMessage(Role.SYSTEM, "S"), ChatMessage(Role.USER, "Hi")]
    rendered = WorldTemplate().render(Conversation(messages), 1000)
    assert {count: rendered.text[:end] for count, end in rendered.turn_ends.items()} == {
        1: "System: S\n\n",
        2: "System: S\n\nUser: Hi\n\n",
    }
    with_tools = WorldTemplate().render(Conversation(messages[1:], [TIMER]), 1000)
    assert with_tools.text[: with_tools.turn_ends[0]].endswith("</tool_call>\n\n")


def test_an_answer_that_is_continued_has_no_end() -> None:
    messages = [ChatMessage(Role.USER, "Hi"), ChatMessage(Role.ASSISTANT, " I am ")]
    rendered = WorldTemplate().render(Conversation(messages, continues=True), 1000)
    assert rendered.text == "User: Hi\n\nAssistant: I am"
    assert set(rendered.turn_ends) == {1}


@pytest.mark.parametrize(
    ("thinks", "variables", "question", "ending"),
    [
        (False, {}, "Hi", "Assistant:"),
        (False, {"reasoning_effort": "high"}, "Hi", "Assistant:"),
        (False, {"enable_thinking": True}, "Hi", "Assistant: <think"),
        (True, {}, "Hi", "Assistant:"),
        (True, {"reasoning_effort": "medium"}, "Hi", "Assistant: <think"),
        (True, {"reasoning_effort": "low"}, "Hi think a bit", "Assistant: <think"),
        (True, {"reasoning_effort": "high"}, "Hi think a lot", "Assistant: <think"),
        (True, {"reasoning_effort": "none"}, "Hi", "Assistant:"),
        (True, {"reasoning_effort": "high", "enable_thinking": False}, "Hi", "Assistant:"),
    ],
)
def test_thinking(thinks: bool, variables: dict[str, object], question: str, ending: str) -> None:
    conversation = Conversation([ChatMessage(Role.USER, "Hi")], variables=variables)
    rendered = WorldTemplate(thinks=thinks).render(conversation, 1000)
    assert rendered.text == f"User: {question}\n\n{ending}"
    assert rendered.stop == (("\n\nUser:",) if ending.endswith("<think") else ("\n\n",))


@pytest.mark.parametrize(
    "template",
    [
        WorldTemplate(),
        WorldTemplate(names={Role.USER: "Bob"}, record="<{role}> {content} {other}", prefix="<{assistant}> {user}"),
        WorldTemplate(sep="\n"),
    ],
)
def test_as_jinja_writes_the_same(template: WorldTemplate) -> None:
    texts = [("System", " Be kind. "), ("user", 'a\n\n \n  b\\n {{c}} "é"\n\n'), ("assistant", ""), ("tool", "7")]
    messages = [ChatMessage(find_role(role) or Role.USER, text) for role, text in texts]
    jinja = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(template.as_jinja)
    for answers in (True, False):
        rendered = jinja.render(
            messages=[{"role": role, "content": text} for role, text in texts], add_generation_prompt=answers
        )
        assert rendered == template.render(Conversation(messages, answers=answers), 10**6).text
