"""The options that say which states requests may start from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from rnn_engine.cli.option_groups import option_group
from rnn_engine.cli.sizes import FiniteRange, parse_size, size_in_words
from rnn_engine.demo import model_path, pirate_state_path
from rnn_engine.errors import InvalidRequestError
from rnn_engine.loading.states import StateFile, StateSettings
from states.named.entry import check_new_name
from states.named.leases import DEFAULT_TTL, MAX_TTL
from states.named.quotas import Quota
from states.named.registry import DEFAULT_CAPACITY

_QUOTA = Quota()


class _NamedFile(click.ParamType[StateFile]):
    """NAME=FILE; what a file of settings says may be a `StateFile` already."""

    name = "NAME=FILE"

    def convert(
        self,
        value: str | StateFile,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> StateFile:
        if isinstance(value, StateFile):
            return value
        name, equals, path = value.partition("=")
        if not equals or not path:
            raise click.BadParameter(f"{value!r} is not allowed; expected NAME=FILE")
        try:
            check_new_name(name, "NAME")
        except InvalidRequestError as error:
            raise click.BadParameter(str(error)) from error
        return StateFile(Path(path), name)


def _make_states(
    files: tuple[StateFile, ...],
    default_state: str | None,
    state_folder: Path | None,
    file_folder: Path | None,
    state_bytes: int,
    key_state_bytes: int | None,
    key_states: int,
    key_state_ttl: float,
) -> StateSettings:
    quota = Quota(key_state_bytes, key_states, key_state_ttl)
    return StateSettings(files, default_state, state_folder, file_folder, state_bytes, quota)


state_options = option_group(
    "States by name",
    _make_states,
    click.option(
        "--state",
        "files",
        multiple=True,
        type=_NamedFile(),
        metavar="NAME=FILE",
        help="Let requests start from the state in this file by its name. May be given several times.",
    ),
    click.option(
        "--default-state",
        metavar="NAME",
        help="What requests start from that name no state; none for an empty one.  [default: the model file's own]",
    ),
    click.option(
        "--state-folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Keep persistent states here over restarts, and let requests read state files from here.",
    ),
    click.option(
        "--state-file-folder",
        "file_folder",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="FOLDER",
        help="Let requests read state files from here and not from --state-folder.",
    ),
    click.option(
        "--state-bytes",
        callback=parse_size,
        metavar="SIZE",
        default=size_in_words(DEFAULT_CAPACITY),
        show_default=True,
        help="The most memory that states with names take.",
    ),
    click.option(
        "--key-state-bytes",
        callback=parse_size,
        metavar="SIZE",
        help="The most that the states of one API key take.  [default: a quarter of --state-bytes]",
    ),
    click.option(
        "--key-states",
        type=click.IntRange(min=1),
        default=_QUOTA.names,
        show_default=True,
        help="The most states that one API key has.",
    ),
    click.option(
        "--key-state-ttl",
        type=FiniteRange(min=DEFAULT_TTL, max=MAX_TTL),
        metavar="SECONDS",
        default=_QUOTA.ttl,
        show_default=True,
        help="The longest that the states of an API key may stay without use, unless they are persistent.",
    ),
)


state_option = click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Start from the state in this file.",
)


def with_demo_state(model: Path, states: StateSettings) -> StateSettings:
    """Add the demo model's own state to `states`, unless a file there has its name. It is not the default."""
    demo = StateFile(pirate_state_path(), "pirate")
    if model != model_path() or any(file.name == demo.name for file in states.files):
        return states
    return replace(states, files=[*states.files, demo])
