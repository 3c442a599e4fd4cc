"""All systems, in the order of the document."""

from __future__ import annotations

from collections.abc import Sequence

from tools.compatibility.ai00 import AI00
from tools.compatibility.anthropic import ANTHROPIC
from tools.compatibility.llama_server import LLAMA_SERVER
from tools.compatibility.ollama import OLLAMA
from tools.compatibility.openai import OPENAI
from tools.compatibility.others import ASTRAI, PIE, REALIZAR, TGI
from tools.compatibility.table import System
from tools.compatibility.vllm import VLLM

SYSTEMS: Sequence[System] = (OPENAI, ANTHROPIC, OLLAMA, AI00, LLAMA_SERVER, VLLM, TGI, REALIZAR, ASTRAI, PIE)
