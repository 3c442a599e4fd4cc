"""The table of the supported versions. A new one is a package beside this module and a row in `VERSIONS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from rnn_engine.backward.context import LoadBackward
from rnn_engine.errors import ModelError
from rnn_engine.forward.forward_pass import LoadLayers
from rnn_engine.model.layout import Layout
from rnn_engine.reference import RunBackward, RunLayers
from rnn_engine.tensor_files.source import TensorInfo, show_all
from rnn_engine.versions import qwen2, v4, v5, v6, v7, v7_deep_embed, v7_retrieval
from rnn_engine.versions.shared.layout import list_model


@dataclass(frozen=True, slots=True)
class Version:
    """A supported RWKV version: how its files are recognised, its tensors, and its forward passes."""

    name: str  # ModelShape.version of its models
    title: str
    pattern: re.Pattern[str]  # of names of tensors that no version after it in the table has
    layout: Layout
    run_layers: RunLayers  # the forward pass in numpy
    load_layers: LoadLayers  # the forward pass on a device
    run_backward: RunBackward | None = None  # the backward pass in numpy; None if initial states can't be trained
    load_backward: LoadBackward | None = None  # the backward pass on a device
    suits: Callable[[Mapping[str, TensorInfo]], bool] = lambda _: True  # distinguishes versions that share a pattern


@dataclass(frozen=True, slots=True)
class VersionTable:
    """The supported versions of RWKV, in the order in which they are tried for a model file."""

    rows: tuple[Version, ...]

    def recognise(self, tensors: Mapping[str, TensorInfo]) -> Version:
        """Return the RWKV version of a model file with these `tensors`. Raises ModelError if none matches."""
        for row in self.rows:
            if any(row.pattern.fullmatch(name) for name in tensors) and row.suits(tensors):
                return row
        found = show_all(tuple(tensors)) or "none"
        raise ModelError(f"no RWKV version has these tensors; expected names such as blocks.0.att.r_k, found {found}")

    def find_layout(self, tensors: Mapping[str, TensorInfo]) -> Layout:
        """Return the layout for a file with these `tensors`. Raises ModelError if no RWKV version matches."""
        return self.recognise(tensors).layout

    def get(self, name: str) -> Version:
        """Return the RWKV version called `name`, such as `v5.2`. Raises KeyError if there is none."""
        return {version.name: version for version in self.rows}[name]


def _v5_row(name: v5.VersionV5) -> Version:
    return Version(
        name=name,
        title=f"RWKV-{name.removeprefix('v')}",
        pattern=re.compile(r"blocks\.\d+\.att\.(ln_x\..*|gate\.weight|time_faaaa)"),
        layout=v5.make_layout(name),
        run_layers=v5.run_layers,
        load_layers=v5.load_layers,
        run_backward=v5.run_backward,
        load_backward=v5.load_backward,
        suits=lambda tensors: v5.find_version(tensors) == name,
    )


def _qwen2_row(
    name: str, title: str, mark: str, layout: Layout, run_layers: RunLayers, load_layers: LoadLayers
) -> Version:
    """Return the row of a version in the body of a Qwen2; `mark` is the name of a tensor that its time mixes have."""
    return Version(
        name=name,
        title=title,
        pattern=re.compile(r"blocks\.\d+\.ffn\.(gate|up|down)\.weight"),
        layout=layout,
        run_layers=run_layers,
        load_layers=load_layers,
        suits=lambda tensors: any(each.endswith(f".att.{mark}") for each in tensors),
    )


# If the two file conventions differ in a name, its pattern has both spellings.
VERSIONS: Final = VersionTable(
    (
        Version(
            name="v7-deepembed",
            title="RWKV-7 with DeepEmbed",
            pattern=re.compile(r"blocks\.\d+\.ffn\.s_emb\.weight"),
            layout=Layout(v7_deep_embed.list_tensors, v7_deep_embed.make_shape),
            run_layers=v7_deep_embed.run_layers,
            load_layers=v7_deep_embed.load_layers,
        ),
        Version(
            name="v7-embedding",
            title="EmbeddingRWKV",
            pattern=re.compile(r"head\.(cls|sts|retr)_head\..*|rwkv\.blocks\.\d+\.att\.r_k"),
            layout=v7_retrieval.EMBEDDING_LAYOUT,
            run_layers=v7.run_layers,
            load_layers=v7.load_layers,
        ),
        Version(
            name="v7-reranker",
            title="reranker of EmbeddingRWKV",
            pattern=re.compile(r"(reranker\.)?head\.[02]\..*|reranker\.blocks\.\d+\.att\.r_k"),
            layout=v7_retrieval.RERANKER_LAYOUT,
            run_layers=v7.run_layers,
            load_layers=v7.load_layers,
        ),
        _qwen2_row("v6-qwen2", "QRWKV6", "time_maa_x", qwen2.LAYOUT_V6, qwen2.run_layers_v6, qwen2.load_layers_v6),
        _qwen2_row("v7-qwen2", "ARWKV", "r_k", qwen2.LAYOUT_V7, qwen2.run_layers_v7, qwen2.load_layers_v7),
        Version(
            name="v7",
            title="RWKV-7",
            pattern=re.compile(r"blocks\.\d+\.att\.(r_k|k_k|k_a|[wa][012]|g[12]|x_[rwkvag])"),
            layout=Layout(partial(list_model, v7.list_layer), v7.make_shape),
            run_layers=v7.run_layers,
            load_layers=v7.load_layers,
            run_backward=v7.run_backward,
            load_backward=v7.load_backward,
        ),
        Version(
            name="v6",
            title="RWKV-6",
            pattern=re.compile(r"blocks\.\d+\.att\.(time_maa_\w+|time_mix_(x|w|w1|w2)|time_decay_w[12])"),
            layout=Layout(partial(list_model, v6.list_layer), v6.make_shape),
            run_layers=v6.run_layers,
            load_layers=v6.load_layers,
            run_backward=v6.run_backward,
            load_backward=v6.load_backward,
        ),
        _v5_row("v5.0"),
        _v5_row("v5.1"),
        _v5_row("v5.2"),
        Version(
            name="v4",
            title="RWKV-4",
            pattern=re.compile(r"blocks\.\d+\.att\.(time_decay|time_first|time_mix_[kvr])"),
            layout=Layout(partial(list_model, v4.list_layer), v4.make_shape),
            run_layers=v4.run_layers,
            load_layers=v4.load_layers,
        ),
    )
)
