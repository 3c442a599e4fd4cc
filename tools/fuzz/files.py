"""`python -m tools.fuzz.files`: damage files of every kind, and check that their readers reject or skip them.

A reader must accept a file or raise one of the project's own errors, in little memory and time. It must never return
another state than the one that was written.
"""

from __future__ import annotations

import logging
import tempfile
import time
import tracemalloc
import uuid
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import click
import numpy as np

from rnn_engine.convert.convert import convert_model
from rnn_engine.demo import model_path
from rnn_engine.errors import RnnEngineError
from rnn_engine.loading.runner import open_model
from rnn_engine.model import LoraChoice, ModelFile
from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer
from rnn_engine_server.auth.keys import ApiKey, read_keys
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.files.full import Origin, SavedState, read_summary
from rnn_engine_states.files.prefab import Prefab, encode_prefab
from rnn_engine_states.files.reading import read_state
from rnn_engine_states.frozen import FrozenState, Payload
from rnn_engine_states.tokens import pack
from tests.support.gguf import save_gguf
from tests.support.hf import save_hf
from tests.support.loras import draw_pair, save_ai00, save_peft
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.named_states import (
    FINGERPRINT,
    SHAPE,
    make_states,
    save_full_state,
    save_tuned_state,
    some_initial,
    some_state,
)
from tests.support.older_models import tiny_v6
from tests.support.pth import save_pth
from tests.support.toy_states import ToyDevice, keep, look_up, same, toy_shape, toy_state
from tests.tokenizer.test_huggingface import byte_level_library
from tools.fuzz.mutations import mutate_file
from tools.reliability_table import Row, finish

MOST_MEMORY = 32 << 20  # bytes; the largest of the files has some 0.1 MB
_MOST_SECONDS = 10.0  # of the processor, whatever else the machine does
_MODEL = random_model(tiny_shape(layers=1, width=16, vocab=4), seed=1)
_BLOCKS_MODEL = random_model(tiny_v6(layers=1, width=32, ffn=32, vocab=4), seed=1)
_HF_MODEL = random_model(tiny_shape(layers=1, head_size=64), seed=1, layer0_v=False)
_TOKENS = [b"<s>", b"a", b"\\xff", b"it\\'s"]
_TIME_STATES = TensorModel(SHAPE, {f"blocks.{n}.att.time_state": some_state()["wkv"][n] for n in range(2)})
_TOY_SHAPE = toy_shape()
_PROMPT = list(range(1, 21))
_DEFLATED = zipfile.ZIP_DEFLATED
_PAIR = draw_pair(_MODEL, "blocks.0.att.key.weight", rank=2)
_PEFT = {"r": 2, "lora_alpha": 4}


@dataclass(frozen=True)
class Kind:
    """A kind of file. `read` raises the errors of its reader, and AssertionError if it reads what was not written."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]


def _member(name: str, make: Callable[[Path], object], read: Callable[[Path], object]) -> Kind:
    """Return the kind of the file `name` of a folder that `make` writes and `read` reads."""

    def write(path: Path) -> None:
        make(path.with_name("whole"))
        path.write_bytes((path.with_name("whole") / name).read_bytes())

    def put_back(path: Path) -> None:
        (path.with_name("whole") / name).write_bytes(path.read_bytes())
        read(path.with_name("whole"))

    return Kind(name, write, put_back)


def _write_full(path: Path) -> None:
    origin = Origin(FINGERPRINT, "none", 3, "prompt_end", "name", (1, 2, 3))
    logits = np.ones(SHAPE.vocab_size, np.float32)
    save_full_state(path, SavedState(origin, pack([1, 2, 3]), Payload(some_state(), logits)))


def _read_full(path: Path) -> None:
    """Read a full state and check that it is the one written. Its checksums cover every byte."""
    loaded = read_state(path, SHAPE, FINGERPRINT)
    if loaded.form == "full":
        read_summary(path, None)
        assert same(loaded.state, some_state()), "another state"


def _write_prefab(path: Path) -> None:
    path.write_bytes(encode_prefab(Prefab("name", uuid.UUID(int=7), True, some_state()), SHAPE))


def _read_state(path: Path) -> None:
    files = make_states().files
    files.freeze(files.read(path), "file")


def _read_model(path: Path) -> None:
    with open_model(path) as opened:
        _read_tensors(opened)


def _read_tensors(opened: ModelFile) -> None:
    assert opened.fingerprint
    for name in opened.names:
        opened.tensor(name)


def _write_converted(path: Path, ending: str, weights: str) -> None:
    base, target = path.with_name("base"), path.with_name(f"converted{ending}")
    save_safetensors(_BLOCKS_MODEL, base)
    with open_model(base) as opened:
        convert_model(opened, target, weights)
    path.write_bytes(target.read_bytes())


def _write_lora(path: Path) -> None:
    save_safetensors(_MODEL, path.with_name("base"))
    save_ai00({"blocks.0.att.key": _PAIR}, path)


def _make_hf(folder: Path) -> None:
    save_hf(_HF_MODEL, folder, "fla", 2)


def _make_peft(folder: Path) -> None:
    save_safetensors(_MODEL, folder.with_name("base"))
    save_peft({"model.layers.0.attn.k_proj": _PAIR}, folder, _PEFT)


def _read_peft(folder: Path) -> None:
    _read_merged(folder.with_name("base"), LoraChoice(folder))


def _read_merged(base: Path, lora: LoraChoice) -> None:
    with open_model(base, [lora]) as opened:
        _read_tensors(opened)


def _read_tokenizer(path: Path) -> None:
    tokenizer = HuggingFaceTokenizer(path)
    for token in tokenizer.encode("the naïve quick fox"):
        tokenizer.decode_bytes(token)


def _write_keys(path: Path) -> None:
    keys = [ApiKey.of(f"a long key of number {number}", f"client-{number}") for number in range(5)]
    path.write_text("# keys\n" + "\n".join(key.line for key in keys) + "\n")


def _write_persistent(path: Path) -> None:
    make_states().files.save(path, "name", some_initial())


def _read_persistent(path: Path) -> None:
    """Load a file as a persistent state. A damaged one may be skipped; a loaded state must be as written."""
    folder = _alone_in_a_folder(path, f"{uuid.UUID(int=7)}.state")
    found: list[FrozenState] = [entry.frozen for entry in make_states(folder).entries()]
    assert all(frozen.digest == some_initial().digest for frozen in found), "another state"


def _write_cached(path: Path) -> None:
    folder = path.with_name("made")
    cache, device = _cache(folder)
    with closing(cache):
        keep(cache, device, _PROMPT)
    [file] = folder.glob("*.state")
    path.write_bytes(file.read_bytes())
    path.with_name("cached name").write_text(file.name)


def _read_cached(path: Path) -> None:
    """Look up a prompt in a disk cache of one file. A damaged one may be skipped; a restored state must be right."""
    folder = _alone_in_a_folder(path, path.with_name("cached name").read_text())
    cache, device = _cache(folder)
    with closing(cache):
        match = look_up(cache, _PROMPT)
        if match.saved == len(_PROMPT):
            cache.restore(match, 1)
            assert same(device.read_state(1), toy_state(_TOY_SHAPE, _PROMPT)), "another state"
        else:
            cache.release(match)


def _cache(folder: Path) -> tuple[StateCache, ToyDevice]:
    device = ToyDevice(_TOY_SHAPE)
    config = CacheConfig(host_capacity=0, disk=DiskConfig(folder, 1 << 20, background_bytes=0))
    return make_cache(_TOY_SHAPE, "model", device, config), device


def _alone_in_a_folder(path: Path, name: str) -> Path:
    """Copy the file under the name `name` into an otherwise empty folder, and return the folder."""
    folder = path.with_name("folder")
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / name).write_bytes(path.read_bytes())
    return folder


KINDS = (
    Kind("full state", _write_full, _read_full),
    Kind("tuned state", lambda path: save_tuned_state(path, some_state(), SHAPE), _read_state),
    Kind("tuned .pth", lambda path: save_pth(_TIME_STATES, path), _read_state),
    Kind("deflated .pth", lambda path: save_pth(_TIME_STATES, path, compression=_DEFLATED), _read_state),
    Kind("prefab state", _write_prefab, _read_state),
    Kind("persistent state", _write_persistent, _read_persistent),
    Kind("cached state", _write_cached, _read_cached),
    Kind("model", lambda path: save_safetensors(_MODEL, path), _read_model),
    Kind("model .pth", lambda path: save_pth(_MODEL, path), _read_model),
    Kind("deflated model", lambda path: save_pth(_MODEL, path, compression=_DEFLATED), _read_model),
    Kind("LoRA", _write_lora, lambda path: _read_merged(path.with_name("base"), LoraChoice(path, 8.0))),
    *(_member(name, _make_peft, _read_peft) for name in ("adapter_config.json", "adapter_model.safetensors")),
    Kind("GGUF model", lambda path: save_gguf(_MODEL, path, tokens=_TOKENS), _read_model),
    Kind("GGUF model in blocks", lambda path: save_gguf(_BLOCKS_MODEL, path, "Q4_1"), _read_model),
    Kind("prefab model", partial(_write_converted, ending=".prefab", weights="f16"), _read_model),
    Kind("quantised model", partial(_write_converted, ending=".safetensors", weights="int8"), _read_model),
    *(_member(name, _make_hf, _read_model) for name in ("config.json", "model.safetensors.index.json")),
    Kind("byte-level tokenizer", lambda path: byte_level_library().save(str(path)), _read_tokenizer),
    Kind(
        "demo tokenizer",
        lambda path: path.write_bytes(model_path().with_name("tokenizer.json").read_bytes()),
        _read_tokenizer,
    ),
    Kind("API keys", _write_keys, read_keys),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of reading one damaged file."""

    ending: str  # read, refused, or fault
    fault: str = ""


def try_case(kind: Kind, sound: bytes, path: Path, seed: str) -> Outcome:
    """Damage the bytes `sound` of a valid file, write them to `path`, read them, and return the outcome."""
    path.write_bytes(mutate_file(sound, Random(seed)))
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    begun = time.process_time()
    try:
        kind.read(path)
        ending = "read"
    except RnnEngineError:
        ending = "refused"
    except BaseException as error:  # also panics of libraries, which are not derived from Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return Outcome("fault", f"{kind.name}, case {seed}: {type(error).__name__}: {str(error)[:300]}")
    memory = tracemalloc.get_traced_memory()[1] - before
    if memory > MOST_MEMORY:
        return Outcome("fault", f"{kind.name}, case {seed}: {memory / 1e6:.0f} MB of memory")
    if time.process_time() - begun > _MOST_SECONDS:
        return Outcome("fault", f"{kind.name}, case {seed}: {time.process_time() - begun:.0f} s")
    return Outcome(ending)


@click.command()
@click.option(
    "--cases", type=click.IntRange(min=1), default=2000, show_default=True, help="Cases of each kind of file."
)
@click.option("--seed", default=0, show_default=True)
def main(cases: int, seed: int) -> None:
    """Give damaged files of every kind to their readers."""
    logging.disable()  # readers log each file that they skip
    warnings.simplefilter("error")
    tracemalloc.start()
    faults: list[str] = []
    click.echo("| file | read | refused | faults |\n| --- | ---: | ---: | ---: |")
    for kind in KINDS:
        counts: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            kind.write(path)
            sound = path.read_bytes()
            for number in range(cases):
                outcome = try_case(kind, sound, path, f"{seed} {number}")
                counts[outcome.ending] += 1
                faults += [outcome.fault] if outcome.fault else []
        click.echo(f"| {kind.name} | {counts['read']} | {counts['refused']} | {counts['fault']} |")
    row = Row(
        "damaged files",
        f"{cases * len(KINDS):,} of {len(KINDS)} kinds",
        f"{len(faults)} crashes, wrong states, or more than {MOST_MEMORY >> 20} MiB",
        "",
        "no device",
    )
    finish(row, faults)


if __name__ == "__main__":
    main()
