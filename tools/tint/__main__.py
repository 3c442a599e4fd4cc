"""`python -m tools.tint`: compile every shader with Tint, and print its error messages."""

from __future__ import annotations

import click

from tests.support.every_shader import every_shader
from tools.tint import FOLDER, INSTALLED, refused_by_tint


@click.command()
def main() -> None:
    """Print what Tint refuses; the exit status is 1 if that is anything."""
    if not INSTALLED.exists():
        raise click.ClickException(f"run `npm ci` in {FOLDER} first")
    shaders = every_shader()
    refused = refused_by_tint(shaders)
    for name, messages in refused.items():
        click.echo(f"{name}\n  " + "\n  ".join(messages))
    click.echo(f"{len(shaders)} shaders, {len(refused)} refused")
    raise SystemExit(bool(refused))


if __name__ == "__main__":
    main()
