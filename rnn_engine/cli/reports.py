"""Write the pages of HTML that commands make, which need no other file."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader

from rnn_engine.files import output_file


def write_page(path: Path, template: str, **values: object) -> None:
    """Write the page that a template of this package makes of `values` to a file. Raises OSError if that fails."""
    loader = PackageLoader("rnn_engine.cli", "")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["share"] = share
    with output_file(path) as file:
        file.write(environment.get_template(template).render(**values).encode())


def share(reached: float, limit: float) -> str:
    """Return `reached` as a percentage of `limit`, such as "75%", or an empty text if `reached` is 0."""
    return f"{reached / limit:.0%}" if reached else ""
