"""Load the openings from openings.toml, and judge the model's answers by each opening's patterns."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

LONGEST = 400  # characters of a sensible answer
SHORT = 3  # words; so short an opening has hardly any other wording, so the training text may contain it
_FILE = Path(__file__).with_name("openings.toml")
_NOT = "not "
_FLAGS = re.IGNORECASE | re.DOTALL


@dataclass(frozen=True, slots=True)
class Opening:
    """A conversation with a newcomer. Each pattern must match the last answer; with "not " before it, it must not."""

    category: str
    turns: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def is_short(self) -> bool:
        """True if every turn has at most SHORT words. The training text may contain short openings."""
        return all(len(words(turn)) <= SHORT for turn in self.turns)

    def fault(self, answer: str) -> str | None:
        """Return why the patterns judge `answer` not sensible, or None if it is sensible."""
        if not answer.strip():
            return "empty"
        if len(answer) > LONGEST:
            return f"longer than {LONGEST} characters"
        for pattern in self.patterns:
            wanted = not pattern.startswith(_NOT)
            if bool(re.search(pattern.removeprefix(_NOT), answer, _FLAGS)) != wanted:
                return f"does not match {pattern}" if wanted else f"matches {pattern.removeprefix(_NOT)}"
        return None


def load_openings() -> list[Opening]:
    """Return the openings of openings.toml, in the order of the file."""
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    rubrics: dict[str, list[str]] = data["rubrics"]
    return [
        Opening(category, tuple(text.split(" | ")), tuple(rubrics.get(rubric, [rubric])))
        for category, items in data["openings"].items()
        for text, rubric in items.items()
    ]


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return re.findall(r"[^\W_]+", text.replace("'", "").lower())
