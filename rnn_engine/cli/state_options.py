"""Options for stored states: the cached states of prompts and answers, and named states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rnn_engine.cli.options import FiniteRange, as_bad_parameter, bad_value, option_group, parse_size, size_in_words
from rnn_engine.demo import model_path, pirate_state_path
from rnn_engine.loading.settings import StateFile, StateSettings
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.named.quota import DEFAULT_CAPACITY, DEFAULT_TTL, MAX_TTL, Quota
from rnn_engine_states.shared.config import MOST_TTL, ObjectsConfig, StoreConfig, StoreUrl

if TYPE_CHECKING:
    from rnn_engine_states.frozen import Precision

_DEFAULT = CacheConfig()
_STORE = StoreConfig(StoreUrl.parse("valkey://localhost"))


def _parse_store(_context: click.Context, _parameter: click.Parameter, text: str | None) -> StoreUrl | None:
    """A click callback that parses the URL of a store for states, Valkey or Redis, that several servers share."""
    with as_bad_parameter():
        return None if text is None else StoreUrl.parse(text)


def _parse_objects(_context: click.Context, _parameter: click.Parameter, text: str | None) -> ObjectsConfig | None:
    """A click callback that checks the URL of an object store for states, such as `s3://BUCKET/PREFIX`."""
    with as_bad_parameter():
        return None if text is None else ObjectsConfig(text)


def _make_cache(
    cache_device_bytes: int,
    cache_host_bytes: int,
    cache_folder: Path | None,
    cache_disk_bytes: int | None,
    cache_write_after: float | None,
    cache_precision: Precision,
    store: StoreUrl | None,
    store_timeout: float | None,
    store_ttl: int | None,
    store_objects: ObjectsConfig | None,
    store_objects_bytes: int | None,
) -> CacheConfig:
    objects = _objects(store_objects, store_objects_bytes)
    return CacheConfig(
        device_capacity=cache_device_bytes,
        host_capacity=cache_host_bytes,
        host_precision=cache_precision,
        disk=_disk(cache_folder, cache_disk_bytes, cache_write_after, cache_precision),
        store=_store(store, store_timeout, store_ttl, cache_precision, objects),
    )


cache_options = option_group(
    "Kept states",
    _make_cache,
    click.option(
        "--cache-device-bytes",
        callback=parse_size,
        metavar="SIZE",
        default=size_in_words(_DEFAULT.device_capacity),
        show_default=True,
        help="Device memory for states of prompts and answers, at most 64 states; 0 keeps none there.",
    ),
    click.option(
        "--cache-host-bytes",
        callback=parse_size,
        metavar="SIZE",
        default=size_in_words(_DEFAULT.host_capacity),
        show_default=True,
        help="This computer's memory for states of prompts and answers; 0 keeps none there.",
    ),
    click.option(
        "--cache-folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Also keep states in files of this folder, over restarts. Only one server at a time may use it.",
    ),
    click.option(
        "--cache-disk-bytes",
        callback=parse_size,
        metavar="SIZE",
        help=f"The most bytes in the files of --cache-folder.  [default: {size_in_words(DiskConfig(Path()).capacity)}]",
    ),
    click.option(
        "--cache-write-after",
        type=FiniteRange(min=0),
        metavar="SECONDS",
        help="Write a state to --cache-folder once it is this old, even if memory has room for it, so that a crash "
        f"loses only newer states.  [default: {DiskConfig(Path()).write_after:g}]",
    ),
    click.option(
        "--cache-precision",
        type=click.Choice(["f32", "f16"]),
        default=_DEFAULT.host_precision,
        show_default=True,
        help="The precision of states in memory, in files and in a store; f16 takes half the space and is not exact.",
    ),
    click.option(
        "--store",
        callback=_parse_store,
        envvar="RNN_ENGINE_STORE",
        metavar="URL",
        help="Share states with other servers of the same model in the Valkey or Redis at valkey://USER:PASSWORD@HOST:"
        "PORT, or valkeys:// for TLS. Other users can't see it in $RNN_ENGINE_STORE. Needs the extra `store`.",
    ),
    click.option(
        "--store-timeout",
        type=FiniteRange(min=0.001, max=60),
        metavar="SECONDS",
        help="The longest that a request waits for the store's answer, and again for a state from it.  "
        f"[default: {_STORE.timeout:g}]",
    ),
    click.option(
        "--store-ttl",
        type=click.IntRange(min=1, max=MOST_TTL),
        metavar="SECONDS",
        help=f"How long an unused state of prompts or answers stays in the store.  [default: {_STORE.ttl}]",
    ),
    click.option(
        "--store-objects",
        callback=_parse_objects,
        metavar="URL",
        help="Keep the states of prompts and answers in the object store at s3://BUCKET/PREFIX, gs://, az:// or "
        "file:///FOLDER, and only their index in --store. Credentials come from the environment, such as "
        "$AWS_ACCESS_KEY_ID. Needs the extra `objects`.",
    ),
    click.option(
        "--store-objects-bytes",
        callback=parse_size,
        metavar="SIZE",
        help="The most bytes that all servers together keep in the object store.  [default: "
        f"{size_in_words(ObjectsConfig('file:///folder').capacity)}]",
    ),
)


def _disk(
    folder: Path | None, num_bytes: int | None, write_after: float | None, precision: Precision
) -> DiskConfig | None:
    if folder is None:
        for option, value in (("--cache-disk-bytes", num_bytes), ("--cache-write-after", write_after)):
            if value is not None:
                raise click.UsageError(f"{option} needs --cache-folder, the folder of the files")
        return None
    disk = DiskConfig(folder, precision=precision)
    return replace(
        disk,
        capacity=disk.capacity if num_bytes is None else num_bytes,
        write_after=disk.write_after if write_after is None else write_after,
    )


def _objects(objects: ObjectsConfig | None, num_bytes: int | None) -> ObjectsConfig | None:
    if num_bytes is None:
        return objects
    if objects is None:
        raise click.UsageError("--store-objects-bytes needs --store-objects, the object store of the states")
    return replace(objects, capacity=num_bytes)


def _store(
    url: StoreUrl | None, timeout: float | None, ttl: int | None, precision: Precision, objects: ObjectsConfig | None
) -> StoreConfig | None:
    if url is None:
        given = {"--store-timeout": timeout, "--store-ttl": ttl, "--store-objects": objects}
        for option, value in given.items():
            if value is not None:
                raise click.UsageError(f"{option} needs --store, the store of the shared states")
        return None
    store = StoreConfig(url, precision, objects=objects)
    return replace(
        store,
        timeout=store.timeout if timeout is None else timeout,
        ttl=store.ttl if ttl is None else ttl,
    )


_QUOTA = Quota()


def parse_state_file(text: str) -> StateFile:
    """Parse FILE or NAME=FILE, the file of a state and perhaps its name. Raises BadParameter.

    An existing file may have `=` in its name.
    """
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return StateFile(Path(text))
    if not path:
        raise bad_value(text, "FILE or NAME=FILE")
    from rnn_engine_states.named.entry import check_new_name

    with as_bad_parameter():
        check_new_name(name, "NAME")
    return StateFile(Path(path), name)


class _StateFileType(click.ParamType[StateFile]):
    """The click type of `parse_state_file`. It also accepts a `StateFile`, from a config file."""

    name = "[NAME=]FILE"

    def convert(
        self,
        value: str | StateFile,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> StateFile:
        return value if isinstance(value, StateFile) else parse_state_file(value)


def _make_states(
    files: tuple[StateFile, ...],
    default_state: str | None,
    state_folder: Path | None,
    file_folder: Path | None,
    state_bytes: int,
    key_state_bytes: int | None,
    key_states: int,
    key_state_ttl: float,
    any_model_states: bool,
) -> StateSettings:
    quota = Quota(key_state_bytes, key_states, key_state_ttl)
    return StateSettings(files, default_state, state_folder, file_folder, state_bytes, quota, any_model_states)


any_model_states_option = click.option(
    "--any-model-states",
    is_flag=True,
    help="Also take states whose files say that they were made for another model, if the sizes fit.",
)

state_files_option = click.option(
    "--state",
    "files",
    multiple=True,
    type=_StateFileType(),
    metavar="[NAME=]FILE",
    help="Let requests start from the state in this file under this name, or else under the file's own. May be "
    "given several times.",
)

state_options = option_group(
    "States by name",
    _make_states,
    state_files_option,
    click.option(
        "--default-state",
        metavar="NAME",
        help="The state from which requests start that name no state; none is an empty state.  [default: the state in "
        "the model's file]",
    ),
    click.option(
        "--state-folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Keep persistent states in this folder over restarts, and let requests read state files from it.",
    ),
    click.option(
        "--state-file-folder",
        "file_folder",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="FOLDER",
        help="Let requests read state files from this folder instead of --state-folder.",
    ),
    any_model_states_option,
    click.option(
        "--state-bytes",
        callback=parse_size,
        metavar="SIZE",
        default=size_in_words(DEFAULT_CAPACITY),
        show_default=True,
        help="The most memory that named states take.",
    ),
    click.option(
        "--key-state-bytes",
        callback=parse_size,
        metavar="SIZE",
        help="The most memory that the named states of one API key take.  [default: a quarter of --state-bytes]",
    ),
    click.option(
        "--key-states",
        type=click.IntRange(min=1),
        default=_QUOTA.names,
        show_default=True,
        help="The most named states that one API key has.",
    ),
    click.option(
        "--key-state-ttl",
        type=FiniteRange(min=DEFAULT_TTL, max=MAX_TTL),
        metavar="SECONDS",
        default=_QUOTA.ttl,
        show_default=True,
        help="How long unused named states of an API key may stay, unless they are persistent.",
    ),
)

state_option = click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Start from the state in this file.",
)


def with_demo_state(model: Path, states: StateSettings) -> StateSettings:
    """Return the state settings `states` with the demo model's own state added, if `model` is the demo model.

    It is not added if a state in `states` has the same name, and it does not become the default.
    """
    demo = StateFile(pirate_state_path(), "pirate")
    if model != model_path() or any((file.name or file.path.stem) == demo.name for file in states.files):
        return states
    return replace(states, files=[*states.files, demo])
