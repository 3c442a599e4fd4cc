"""Official clients of an application, which is served as long as they are open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import openai
from aiohttp import web
from aiohttp.test_utils import TestServer


@asynccontextmanager
async def openai_client(app: web.Application, key: str = "-") -> AsyncIterator[openai.AsyncOpenAI]:
    """Serve `app` and yield OpenAI's client of it, which has the API key `key` and sends no request twice."""
    async with (
        TestServer(app) as server,
        openai.AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key=key, max_retries=0) as client,
    ):
        yield client


@asynccontextmanager
async def anthropic_client(app: web.Application, key: str = "-") -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Serve `app` and yield Anthropic's client of it, which has the API key `key` and sends no request twice."""
    async with (
        TestServer(app) as server,
        anthropic.AsyncAnthropic(base_url=str(server.make_url("")), api_key=key, max_retries=0) as client,
    ):
        yield client
