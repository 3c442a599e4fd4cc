"""Chat templates: they turn a conversation, and descriptions of its tools, into one text."""

from rnn_engine.chat_template.messages import ROLE_WORDS as ROLE_WORDS
from rnn_engine.chat_template.messages import ChatMessage as ChatMessage
from rnn_engine.chat_template.messages import ChatTemplate as ChatTemplate
from rnn_engine.chat_template.messages import Conversation as Conversation
from rnn_engine.chat_template.messages import Rendered as Rendered
from rnn_engine.chat_template.messages import Role as Role
from rnn_engine.chat_template.messages import Tool as Tool
from rnn_engine.chat_template.messages import ToolCall as ToolCall
from rnn_engine.chat_template.messages import find_role as find_role
from rnn_engine.chat_template.world import WorldTemplate as WorldTemplate
