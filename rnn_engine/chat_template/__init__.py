"""Chat templates, which turn a conversation and descriptions of its tools into one prompt, and readers of answers."""

from rnn_engine.chat_template.conversation import ROLE_WORDS as ROLE_WORDS
from rnn_engine.chat_template.conversation import ChatMessage as ChatMessage
from rnn_engine.chat_template.conversation import ChatTemplate as ChatTemplate
from rnn_engine.chat_template.conversation import Conversation as Conversation
from rnn_engine.chat_template.conversation import Rendered as Rendered
from rnn_engine.chat_template.conversation import Role as Role
from rnn_engine.chat_template.conversation import WorldTemplate as WorldTemplate
from rnn_engine.chat_template.conversation import count_leading_system as count_leading_system
from rnn_engine.chat_template.conversation import find_role as find_role
from rnn_engine.chat_template.tools import Tool as Tool
from rnn_engine.chat_template.tools import ToolCall as ToolCall
