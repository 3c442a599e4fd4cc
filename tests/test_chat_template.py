"""The size of a prompt is bounded before it is built."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.chat_template import ChatMessage, ChatTemplate, Role

texts = st.lists(
    st.sampled_from(["{role}", "{content}", "{user}", "{assistant}", "{x}", "\n\n", "a", "é", " "]), max_size=5
).map("".join)
templates = st.builds(
    ChatTemplate,
    record=texts.map(lambda text: text + "{content}"),
    prefix=texts,
    sep=texts,
    names=st.dictionaries(st.sampled_from(Role), texts),
)
conversations = st.lists(st.builds(ChatMessage, st.sampled_from(Role), texts), max_size=4)


@given(templates, conversations)
def test_no_prompt_is_longer_than_its_bound(template: ChatTemplate, messages: Sequence[ChatMessage]) -> None:
    assert len(template.render(messages)) <= template.most_characters(messages)


def test_the_bound_of_the_usual_template_is_near() -> None:
    messages = [ChatMessage(Role.USER, "Hello, who are you?"), ChatMessage(Role.ASSISTANT, "A model.")] * 10
    template = ChatTemplate()
    assert template.most_characters(messages) < 2 * len(template.render(messages))


def test_a_bound_of_gigabytes_is_found_without_building_them() -> None:
    template = ChatTemplate(record="{content}" * 100_000, prefix="{user}" * 100_000, names={Role.USER: "x" * 100_000})
    assert template.most_characters([ChatMessage(Role.USER, "a" * 1_000_000)]) > 10**11


def test_a_long_separator_follows_a_short_text() -> None:
    template = ChatTemplate(sep="\n" * 1_000_000)
    assert len(template.follow("text\n\n")) == 1_000_000 - 2
