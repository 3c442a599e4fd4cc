"""The options that say how much of prompts and answers is kept, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path

import click
import cloup

from rnn_engine.cli.sizes import parse_size, size_in_words
from states.cache.config import CacheConfig, DiskConfig
from states.payload import Precision

_DEFAULT = CacheConfig()

_OPTIONS = (
    click.option(
        "--cache-device-bytes",
        callback=parse_size,
        metavar="SIZE",
        default=size_in_words(_DEFAULT.device_capacity),
        show_default=True,
        help="Memory of the device for states of prompts and answers, up to 64 states; 0 keeps none there.",
    ),
    click.option(
        "--cache-host-bytes",
        callback=parse_size,
        metavar="SIZE",
        default=size_in_words(_DEFAULT.host_capacity),
        show_default=True,
        help="The same in this computer's memory.",
    ),
    click.option(
        "--cache-folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Keep states in files of this folder too, over restarts. One server at a time may use it.",
    ),
    click.option(
        "--cache-disk-bytes",
        callback=parse_size,
        metavar="SIZE",
        help=f"The most that these files take.  [default: {size_in_words(DiskConfig(Path()).capacity)}]",
    ),
    click.option(
        "--cache-write-after",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Write a state there when it is so old, although memory has room for it: a crash loses no more.  "
        f"[default: {DiskConfig(Path()).write_after:g}]",
    ),
    click.option(
        "--cache-precision",
        type=click.Choice(["f32", "f16"]),
        default=_DEFAULT.host_precision,
        show_default=True,
        help="Of states in memory and in files; f16 takes half the room and is not exact.",
    ),
)


def cache_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to `command`, which takes them together as `cache`."""

    @wraps(command)
    def with_cache(
        *,
        cache_device_bytes: int,
        cache_host_bytes: int,
        cache_folder: Path | None,
        cache_disk_bytes: int | None,
        cache_write_after: float | None,
        cache_precision: Precision,
        **others: object,
    ) -> None:
        disk = _disk(cache_folder, cache_disk_bytes, cache_write_after, cache_precision)
        cache = CacheConfig(
            device_capacity=cache_device_bytes,
            host_capacity=cache_host_bytes,
            host_precision=cache_precision,
            disk=disk,
        )
        command(cache=cache, **others)

    return cloup.option_group("Kept states", *_OPTIONS)(with_cache)


def _disk(
    folder: Path | None, num_bytes: int | None, write_after: float | None, precision: Precision
) -> DiskConfig | None:
    if folder is None:
        for option, value in (("--cache-disk-bytes", num_bytes), ("--cache-write-after", write_after)):
            if value is not None:
                raise click.UsageError(f"{option} needs --cache-folder, where the files are to be")
        return None
    disk = DiskConfig(folder, precision=precision)
    return replace(
        disk,
        capacity=disk.capacity if num_bytes is None else num_bytes,
        write_after=disk.write_after if write_after is None else write_after,
    )
