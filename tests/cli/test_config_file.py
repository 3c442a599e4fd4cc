"""`serve --config`: options from a file, ours and ai00's."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rnn_engine.cli import main
from rnn_engine.cli.serve import NamedModel
from rnn_engine.cli.serve import serve_command as serve_command
from rnn_engine.cli.session import EngineChoice
from rnn_engine.gpu import DeviceInfo
from rnn_engine.loading.settings import StateFile
from rnn_engine_server.core.settings import ServerSettings, TlsFiles
from tests.support.cli import Command

# ai00's own file, except the names of the files.
AI00 = """
[model]
embed_device = "Cpu"
max_batch = 5
name = "tiny.safetensors"
path = "{folder}"
precision = "Fp16"
quant = 1
quant_type = "Int8"
stop = ["\\n\\n"]
token_chunk_size = 128

[[lora]]
alpha = 192
path = "{folder}/a.lora"

[[state]]
path = "poet.st"

[[state]]
default = true
id = "fd7a60ed-7807-449f-8256-bccae3246222"
name = "chess"
path = "{folder}/chess.state"

[tokenizer]
path = "{folder}/tokenizer.json"

[bnf]
enable_bytes_cache = true
start_nonterminal = "start"

[adapter]
Manual = 3

[listen]
acme = false
domain = "local"
force_pass = true
ip = "127.0.0.2"
port = 65431
slot = "permisionkey"
tls = false

[[listen.app_keys]]
app_id = "admin"
secret_key = "ai00_is_good"

[web]
path = "assets/www/index.zip"
"""


@dataclass(frozen=True, slots=True)
class Started:
    """The arguments with which the server would have been started."""

    choice: EngineChoice
    models: Sequence[NamedModel]
    default: str | None
    settings: ServerSettings


Start = Callable[..., Started]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, rnn_engine: Command) -> Start:
    """Return a function that runs `serve` up to the point of loading."""
    seen: list[Started] = []

    def run(load: partial[object], settings: ServerSettings, _on_ready: object) -> None:
        choice, models, default, _load = load.args
        seen.append(Started(choice, models, default, settings))

    monkeypatch.setattr("rnn_engine.cli.serving.run", run)

    def begin(*arguments: object) -> Started:
        rnn_engine("serve", *arguments)
        return seen.pop()

    return begin


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file.toml"
    path.write_text(text)
    return path


def test_ai00s_file_is_read_as_it_is(start: Start, tmp_path: Path, model_file: Path) -> None:
    (tmp_path / "tiny.safetensors").write_bytes(model_file.read_bytes())
    started = start("-c", write(tmp_path, AI00.format(folder=tmp_path)))
    choice, settings = started.choice, started.settings
    assert choice.model == tmp_path / "tiny.safetensors"
    assert (choice.slots, choice.loading.weights, choice.loading.device) == (5, "int8,layers=1", "3")
    assert choice.loading.tokenizer == str(tmp_path / "tokenizer.json")
    assert [(lora.path, lora.alpha) for lora in choice.loading.loras] == [(tmp_path / "a.lora", 192)]
    assert choice.states.files == (
        StateFile(tmp_path / "poet.st", "poet"),
        StateFile(tmp_path / "chess.state", "chess", uuid.UUID("fd7a60ed-7807-449f-8256-bccae3246222")),
    )
    assert (choice.states.default, choice.states.file_folder) == ("chess", tmp_path)
    assert (settings.host, settings.port, settings.model_folder) == ("127.0.0.2", 65431, tmp_path)
    assert [key.principal.name for key in settings.auth.keys] == ["admin"]


def test_ai00s_certificate_is_where_ai00_has_it(start: Start, tmp_path: Path, model_file: Path) -> None:
    (tmp_path / "tiny.safetensors").write_bytes(model_file.read_bytes())
    text = AI00.format(folder=tmp_path).replace("tls = false", "tls = true")
    tls = start("-c", write(tmp_path, text)).settings.auth.tls
    assert tls == TlsFiles(Path("assets/certs/cert.pem"), Path("assets/certs/key.pem"))


def test_admins_handle_files_where_they_do_with_ai00(
    start: Start, tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.safetensors").write_bytes(model_file.read_bytes())
    path = write(tmp_path, AI00.format(folder=tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = start("-c", path).settings
    assert (settings.admin_folders, settings.unzip_folders) == ((), ())
    for name in ("tokenizer", "configs", "temp"):
        (tmp_path / "assets" / name).mkdir(parents=True)
    settings = start("-c", path).settings
    assert settings.admin_folders == (Path("assets/tokenizer"), Path("assets/configs"))
    assert settings.unzip_folders == (Path("assets/temp"),)


@pytest.mark.parametrize("adapter", ['adapter = "Auto"', 'adapter = "Economical"', "adapter = { Auto = {} }", ""])
def test_an_adapter_may_be_a_word(start: Start, tmp_path: Path, model_file: Path, adapter: str) -> None:
    (tmp_path / "tiny.safetensors").write_bytes(model_file.read_bytes())
    text = AI00.format(folder=tmp_path).replace("[adapter]\nManual = 3", "")
    started = start("-c", write(tmp_path, f"{adapter}\n{text}"))
    assert started.choice.loading.device == "auto"


def test_an_economical_device_is_part_of_the_processor(
    start: Start, tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.safetensors").write_bytes(model_file.read_bytes())
    text = AI00.format(folder=tmp_path).replace("Manual = 3", "Economical = {}")
    for kinds, expected in ((["discrete", "integrated"], "1"), (["discrete"], "auto")):
        found = [DeviceInfo(index, "GPU", kind, "Vulkan", "") for index, kind in enumerate(kinds)]
        monkeypatch.setattr("rnn_engine.gpu.device.list_devices", lambda found=found: found)
        assert start("-c", write(tmp_path, text)).choice.loading.device == expected


def test_the_command_line_comes_before_the_file(start: Start, tmp_path: Path, model_file: Path) -> None:
    (tmp_path / "tiny.safetensors").write_bytes(model_file.read_bytes())
    started = start(model_file, "--config", write(tmp_path, AI00.format(folder=tmp_path)), "-p", 7, "--slots", 2)
    assert (started.choice.model, started.choice.slots, started.settings.port) == (model_file, 2, 7)
    assert started.settings.host == "127.0.0.2"


def test_our_own_file_has_the_names_of_the_options(start: Start, tmp_path: Path, model_file: Path) -> None:
    text = f"""
    model = ["one={model_file}", "two={model_file}"]
    default-model = "two"
    slots = 3
    idle_unload = 12.5
    any-model = true
    strict = true
    max-body-bytes = "2M"
    cache-host-bytes = 1000000
    state-folder = "{tmp_path}/states"
    cors-origin = ["https://chat.example"]
    """
    started = start("--config", write(tmp_path, text))
    assert [model.name for model in started.models] == ["one", "two"]
    assert (started.default, started.choice.slots) == ("two", 3)
    settings = started.settings
    assert settings.strict
    assert not start(model_file).settings.strict
    assert start(model_file, "--strict").settings.strict
    assert (settings.any_model, settings.idle_unload_seconds, settings.limits.max_body_bytes) == (True, 12.5, 2 * 2**20)
    assert started.choice.cache is not None
    assert started.choice.cache.host_capacity == 1_000_000
    assert started.choice.states.folder == tmp_path / "states"
    assert settings.auth.cors_origins == ("https://chat.example",)
    assert start("--config", write(tmp_path, f'model = "{model_file}"')).choice.model == model_file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slot = 3", "unknown option 'slot'; did you mean 'slots'?"),
        ("slots = {}", "slots is {}; expected a text or a number"),
        ("slots = [1, 2]", "slots is [1, 2]; expected a text or a number"),
        ("lora = [true]", "lora is True; expected a text, a number or a list of these"),
        ("web = 'no'", "web is 'no'; expected true or false"),
        ("drain-seconds = nan", "Invalid value for '--drain-seconds': 'nan' is not a finite number"),
        ("slots = 'many'", "'many' is not a valid integer"),
        ("slots =", "Invalid value"),
        ("[model]\npath = 'x'", "[model] name is missing"),
        ("[model]\nname = 'x'\nquant = 1\nquant_type = 'Int3'", "quant_type is 'Int3'; expected one of"),
        ("[model]\nname = 'x'\nnmae = 'x'", "unknown setting 'nmae' in [model]"),
        ("[model]\nname = 'x'\n[listen]\nacme = true", "acme is not supported; set it to false, and tls = true with"),
        ("[model]\nname = 'x'\n[[state]]\npath = 'a'\nid = 'b'", "id is 'b'; expected a UUID"),
        ("[model]\nname = 'x'\n[[lora]]\nalpha = 1", "path is missing"),
        ("adapter = 'Auot'\n[model]\nname = 'x'", "adapter is 'Auot'; expected Auto, Economical or"),
        ("adapter = 'NotEconomical'\n[model]\nname = 'x'", "adapter is 'NotEconomical'; expected"),
        ("[model]\nname = 'x'\n[adapter]\nManuel = 3", "adapter is {'Manuel': 3}; expected"),
        ("[model]\nname = 'x'\n[adapter]\nManual = -1", "adapter is {'Manual': -1}; expected"),
        ("[model]\nname = 'x'\n[adapter]\nManual = 1\nAuto = {}", "; expected Auto, Economical or a table"),
        ("[model]\nname = 'x'\nmodel_name = 'y'", "model_name: 'y' is not allowed; expected the value of name"),
        ("store = ['valkey://:secret@host']", "store is a list; expected a text or a number"),
        ("[model]\nname = 'x'\n[listen]\napp_keys = ['secret']", "app_keys is a list; expected a list of"),
        ("max-queued = 1\nmax_queued = 2", "max_queued is not allowed; expected the option at most once"),
    ],
)
def test_what_a_file_can_not_say(rnn_engine: Command, tmp_path: Path, text: str, words: str) -> None:
    said = rnn_engine("serve", "--config", write(tmp_path, text), code=2)
    assert words in " ".join(said.split())
    assert "secret" not in said


def test_one_text_serves_for_an_option_that_may_be_given_several_times(start: Start, tmp_path: Path) -> None:
    started = start("--config", write(tmp_path, 'cors-origin = "https://chat.example"\nlora = "a.pth:8"'))
    assert started.settings.auth.cors_origins == ("https://chat.example",)
    assert len(started.choice.loading.loras) == 1


VALUES = ("true", "nan", "''", "'*'", "[1, 2]", "[true]", "[[1]]")
"""Of the kinds that TOML has."""


@pytest.mark.parametrize("value", VALUES)
def test_each_option_is_taken_from_a_file_or_refused_as_on_the_command_line(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_file: Path, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for parameter in serve_command.params:
        if isinstance(parameter, click.Option) and parameter.expose_value and parameter.opts[-1].startswith("--"):
            name = parameter.opts[-1].removeprefix("--")
            result = _serve(model_file, "--config", write(tmp_path, f"{name} = {value}"))
            if isinstance(parameter.type, click.FloatRange) or parameter.is_flag:
                assert (result.exit_code == 0) == (value == "true" and parameter.is_flag), f"{name} = {value}"


@pytest.mark.parametrize("value", VALUES)
def test_each_field_of_ai00s_file_is_taken_or_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    model = "[model]\nname = 'x'\n"
    texts = [
        *(f"{name} = {value}\n{model}" for name in ("lora", "state", "tokenizer", "adapter", "listen")),
        *(f"{model}{name} = {value}\n" for name in ("path", "quant", "quant_type", "max_batch")),
        f"{model}[tokenizer]\npath = {value}\n",
        *(f"{model}[[{name}]]\npath = {value}\n" for name in ("lora", "state")),
        *(f"{model}[[state]]\npath = 'x'\n{name} = {value}\n" for name in ("name", "id", "default")),
        *(f"{model}[listen]\n{name} = {value}\n" for name in ("ip", "port", "tls", "acme", "app_keys")),
        f"{model}[[lora]]\npath = 'x'\nalpha = {value}\n",
        f"{model}[[listen.app_keys]]\napp_id = {value}\nsecret_key = {value}\n",
        f"{model}[adapter]\nManual = {value}\n",
        f"[model]\nname = {value}\n",
    ]
    for text in texts:
        (tmp_path / "assets" / "models" / "x").mkdir(parents=True, exist_ok=True)
        _serve("--config", write(tmp_path, text))


def _serve(*arguments: object) -> Result:
    """Run `serve` up to the point of loading. Assert that it gets there, or ends with an error and no traceback."""
    result = CliRunner().invoke(main, ["serve", *map(str, arguments)])
    assert result.exit_code == 0 or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 0 or "Error: " in result.output
    return result
