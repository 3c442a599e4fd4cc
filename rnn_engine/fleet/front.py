"""What the server's process has of a model whose weights are on replicas."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from rnn_engine.fleet.remote import Front
from rnn_engine.hub import locate_model
from rnn_engine.loading.chat_template import load_chat_template
from rnn_engine.loading.model import open_merged
from rnn_engine.loading.parts import own_folders
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.loading.states import StateSettings, open_registry, share_names
from rnn_engine.tokenizer import load_tokenizer
from states.cache.config import CacheConfig
from states.shared.config import StoreConfig
from states.shared.opening import open_store

_NO_CACHE = CacheConfig(device_capacity=0, host_capacity=0)
_DEFAULT_SETTINGS = LoadSettings()


def open_front(
    model_path: str | Path,
    loading: LoadSettings = _DEFAULT_SETTINGS,
    *,
    states: StateSettings | None = None,
    store: StoreConfig | None = None,
) -> Front:
    """Open a model's tokenizer, chat template and named states; its weights are read for their fingerprint alone.

    Blocks. The options are those of `Engine.load`, and so are the errors. With a `store`, fronts share named states.
    """
    path, settings = locate_model(model_path), states or StateSettings()
    with ExitStack() as undo:
        folders = {}
        for use, folder in own_folders(_NO_CACHE, settings):
            undo.callback(folder.release)
            folders[use] = folder.path
        opened = None if store is None else open_store(store)
        if opened is not None:
            undo.callback(opened.close)
        with open_merged(path, tuple(loading.loras), v5_group_norm_epsilon=loading.v5_group_norm_epsilon) as model:
            chosen = load_tokenizer(loading.tokenizer, path, model.shape.vocab_size)
            registry = open_registry(model, settings)
            named = share_names(opened, registry, model.fingerprint, settings)
        return Front(
            tokenizer=chosen,
            chat_template=load_chat_template(loading.chat_template, path),
            states=named,
            state_files=registry.files,
            folders=folders,
            on_forgotten=registry.on_forgotten,
            store_counters=lambda: None if opened is None else opened.client.counters(),
            close=undo.pop_all().close,
        )
