"""ai00's Config.toml as a body, with its defaults."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from server.schemas.ai00.models import Ai00Quant
from server.schemas.base import RequestBody


class ConfigModel(RequestBody):
    """Which model is served, and how."""

    aliases: ClassVar = {"model_path": "path", "model_name": "name"}

    path: str = Field(default="assets/models", description="The folder of models.")
    name: str = Field(default="", description="A file in it.")
    quant: int = Field(default=0, ge=0, description="How many layers `quant_type` is for.")
    quant_type: Ai00Quant = Field(default="None", description="The weights of `quant`.")
    precision: Literal["Fp16", "Fp32"] = Field(default="Fp16", description="Has no effect here.")
    token_chunk_size: int = Field(default=128, ge=1, description="Has no effect here.")
    max_batch: int = Field(default=8, ge=1, description="How many requests run at a time.")


class ConfigLora(RequestBody):
    """A LoRA to merge."""

    path: str = Field(default="", description="Its file.")
    alpha: float = Field(default=1.0, description="Its strength.")


class ConfigState(RequestBody):
    """A state to start from."""

    path: str = Field(default="", description="Its file.")
    name: str | None = Field(default=None, description="Its name.")
    id: str | None = Field(default=None, description="Its id, a UUID.")
    default: bool = Field(default=False, description="Whether requests start from it that name none.")


class ConfigTokenizer(RequestBody):
    path: str = Field(default="assets/tokenizer/rwkv_vocab_v20230424.json", description="Its file.")


class ConfigBnf(RequestBody):
    enable_bytes_cache: bool = Field(default=True, description="Has no effect here.")
    start_nonterminal: str = Field(default="start", description="Has no effect here: it is always `start`.")


class AppKey(RequestBody):
    app_id: str = Field(default="", description="The key's name.")
    secret_key: str = Field(default="", description="The key.")


class ConfigListen(RequestBody):
    """Where the server listens, and its keys."""

    ip: str = Field(default="0.0.0.0", description="The address.")
    port: int = Field(default=65530, ge=0, le=65535, description="The port.")
    domain: str = Field(default="local", description="Has no effect here.")
    acme: bool = Field(default=False, description="Only false.")
    tls: bool = Field(default=False, description="Whether it speaks HTTPS.")
    slot: str = Field(default="ai00s", description="Has no effect here.")
    force_pass: bool | None = Field(default=False, description="Has no effect here.")
    expire_sec: int | None = Field(default=86400, description="Has no effect here.")
    app_keys: list[AppKey] = Field(default=[], description="The API keys.")


class ConfigWeb(RequestBody):
    path: str = Field(default="assets/www/index.zip", description="Has no effect here.")


class Ai00Config(RequestBody):
    """ai00's Config.toml."""

    model: ConfigModel = Field(default=ConfigModel(), description="The model.")
    lora: list[ConfigLora] = Field(default=[], description="LoRAs to merge, in this order.")
    state: list[ConfigState] = Field(default=[], description="States to start from.")
    tokenizer: ConfigTokenizer = Field(default=ConfigTokenizer(), description="The tokenizer.")
    bnf: ConfigBnf = Field(default=ConfigBnf(), description="Of grammars.")
    adapter: Literal["Auto", "Economical"] | dict[str, Any] = Field(
        default="Auto", description='The device: `Auto`, `Economical` or `{"Manual": index}`.'
    )
    listen: ConfigListen = Field(default=ConfigListen(), description="Where the server listens.")
    web: ConfigWeb | None = Field(default=None, description="ai00's web pages.")
    embed: dict[str, Any] | None = Field(default=None, description="The embedding model.")


class LoadConfigRequest(RequestBody):
    """A file to read."""

    path: str = Field(min_length=1, description="A Config.toml in a folder of the admins.")


class SaveConfigRequest(LoadConfigRequest):
    """Settings to write, for the next start."""

    config: Ai00Config = Field(description="What to write.")


class UnzipRequest(RequestBody):
    """An archive to unpack."""

    aliases: ClassVar = {"zip_path": "path", "target_dir": "output"}

    path: str = Field(min_length=1, description="A zip archive in a folder of the admins.")
    output: str = Field(min_length=1, description="A folder in one for unpacked archives (`--unzip-folder`).")
