"""Run client packages against a server, each as its own documentation shows.

    uv venv clients && uv pip install --python clients/bin/python -r tools/clients/requirements-1.txt
    (cd tools/clients/node && npm ci --ignore-scripts); npm install --ignore-scripts --global promptfoo
    rnn-engine serve & clients/bin/python -m tools.clients --url http://127.0.0.1:65530

The tool tries the packages that you name, or else all that are installed. Their requirements contradict each other, so
there are four files of requirements, each for its own environment. `ai` is the AI SDK of Vercel; it, promptfoo and the
packages whose names begin with npm run on node. The coding agents (claude, codex, opencode, aider) are those on the
path; their prompts are long, so that a first answer may take minutes on a CPU.

The demo model can answer the questions. A check passes if the package accepts the answer: if it parses into the type
that was requested, or if the tool is called and its result is sent back. Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from tools.clients import agent_checks, node_checks
from tools.clients.questions import Check, Checks, Row

PACKAGES: Mapping[str, tuple[str, str]] = {
    "openai": ("openai", "openai_checks"),
    "instructor": ("instructor", "instructor_checks"),
    "langchain-openai": ("langchain_openai", "langchain_checks"),
    "pydantic-ai-slim": ("pydantic_ai", "pydantic_ai_checks"),
    "litellm": ("litellm", "litellm_checks"),
    "llm": ("llm", "llm_checks"),
    "llama-index-llms-openai-like": ("llama_index", "llama_index_checks"),
    "openai-agents": ("agents", "openai_agents_checks"),
    "dspy": ("dspy", "dspy_checks"),
    "smolagents": ("smolagents", "smolagents_checks"),
    "guidance": ("guidance", "guidance_checks"),
    "lm-eval": ("lm_eval", "lm_eval_checks"),
    "mistralai": ("mistralai", "mistralai_checks"),
    "cohere": ("cohere", "cohere_checks"),
    "langchain-cohere": ("langchain_cohere", "langchain_retrieval_checks"),
    "llama-index-postprocessor-tei-rerank": (
        "llama_index.postprocessor.tei_rerank",
        "llama_index_retrieval_checks",
    ),
    "chromadb": ("chromadb", "chromadb_checks"),
    "haystack-ai": ("haystack", "haystack_checks"),
    "huggingface_hub": ("huggingface_hub", "huggingface_hub_checks"),
}
"""Distribution -> what Python imports, and the module with its checks."""

ALL = [*PACKAGES, *node_checks.SCRIPTS, "promptfoo", *agent_checks.AGENTS]
_SHOWN = 110  # characters of an outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:65530", help="the server's root")
    parser.add_argument("packages", nargs="*", help=f"packages to try, of {', '.join(ALL)}; all if none is given")
    arguments = parser.parse_args()
    if unknown := set(arguments.packages) - set(ALL):
        parser.error(f"unknown package: {', '.join(sorted(unknown))}")
    url = f"{arguments.url.rstrip('/')}/v1"
    print("| package | what | works | outcome |\n|---|---|---|---|", flush=True)
    failed = False
    for package, row in _rows(url, arguments.packages or ALL):
        failed |= not row.works
        shown = " ".join(row.outcome.split())[:_SHOWN].replace("|", "\\|")
        print(f"| {package} | {row.what} | {'yes' if row.works else 'no'} | `{shown}` |", flush=True)
    sys.exit(failed)


def _rows(url: str, wanted: Collection[str]) -> Iterator[tuple[str, Row]]:
    """Run the checks of the packages in `wanted` that are installed. Yield the package with its version, and a row."""
    for package, (imported, module) in PACKAGES.items():
        if package in wanted and _is_installed(imported):
            checks: Checks = import_module(f"tools.clients.{module}").CHECKS
            for what, check in checks.items():
                yield f"{package} {version(package)}", _run(what, check, url)
    for package in node_checks.SCRIPTS:
        if package in wanted and (found := node_checks.version(package)) is not None:
            for row in node_checks.rows(package, url):
                yield f"{package} {found}", row
    if "promptfoo" in wanted and (found := node_checks.promptfoo_version()) is not None:
        for row in node_checks.promptfoo_rows(url):
            yield f"promptfoo {found}", row
    for agent in agent_checks.AGENTS:
        if agent in wanted and (found := agent_checks.version(agent)) is not None:
            for row in agent_checks.rows(agent, url):
                yield f"{agent} {found}", row


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package that has the module in it
        return False


def _run(what: str, check: Check, url: str) -> Row:
    try:
        return Row(what, True, repr(check(url)))
    except Exception as error:
        return Row(what, False, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
