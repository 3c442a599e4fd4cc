"""Download the libraries of the web page again: python -m tools.web

After a change of a version in the page's vendor/vendored.json, `--update` writes the new SHA-256 there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import click

from tools.web import LIST, VENDOR, digest, read_list


@click.command()
@click.option("--update", is_flag=True, help="Accept files whose SHA-256 differs from the list, and update the list.")
def main(update: bool) -> None:
    """Download the libraries from npm, and write them if every SHA-256 is that of the list."""
    fetched = [(library, library.fetch()) for library in read_list()]
    changed = [library.file for library, content in fetched if digest(content) != library.sha256]
    if changed and not update:
        raise click.ClickException(f"the SHA-256 differs from the list: {', '.join(changed)}; --update accepts it")
    for library, content in fetched:
        (VENDOR / library.file).write_bytes(content)
        click.echo(f"{library.file}: {library.package} {library.version}, {len(content):,} bytes")
    libraries = [asdict(replace(library, sha256=digest(content))) for library, content in fetched]
    LIST.write_text(json.dumps(libraries, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
