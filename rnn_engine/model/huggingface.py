"""Read RWKV models in Hugging Face folders: the config.json, the shards, and each library's tensor names."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import has_attention
from rnn_engine.model.stored import Reorder, Rows, Split, StoredPart, StoredStep, StoredTensor, Swap
from rnn_engine.tensor_files.formats import JoinedFiles, open_source
from rnn_engine.tensor_files.source import BinaryFile, FileStamp, TensorSource, count, show, show_all
from rnn_engine.types import ModelShape

_MOST_BYTES: Final = 16 << 20  # an index of a thousand tensors has 0.1 MB


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ModelError if it can't be read or has more than 16 MiB."""
    return read_stamped_json(path)[0]


def read_stamped_json(path: Path) -> tuple[dict[str, Any], FileStamp]:
    """Return the JSON object in the file at `path`, and the file's stamp (size, times). Raises as `read_json` does."""
    file = BinaryFile(path)
    try:
        if file.stamp.size > _MOST_BYTES:
            raise ModelError(f"{path} has {file.stamp.size} bytes; expected at most {_MOST_BYTES}")
        content = json.loads(file.read(0, file.stamp.size).tobytes(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    finally:
        file.close()
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}; expected an object")
    return content, file.stamp


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a parsed JSON object's names and values as a dict. Raises ValueError if a name occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"{show(repeated)} occurs twice")
    return found


# RWKV-7's tensor names in flash-linear-attention, as in Hugging Face folders and PEFT's adapters.
#
# Its linear layers hold [out, in], so the two matrices of each low-rank adapter are the transposes of BlinkDL's.

_TOP: Final = {
    "emb.weight": "model.embeddings.weight",
    "head.weight": "lm_head.weight",
    "ln_out.weight": "model.norm.weight",
    "ln_out.bias": "model.norm.bias",
}
_PARTS: Final = {"ln0": "pre_norm", "ln1": "attn_norm", "ln2": "ffn_norm", "att": "attn", "ffn": "ffn"}
_TIME_MIX: Final = {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "ln_x": "g_norm"}
_ADAPTER: Final = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}
_BLOCK: Final = re.compile(r"blocks\.([0-9]+)\.([a-z0-9]+)\.(.*)")
_FLA_BLOCK: Final = re.compile(r"model\.layers\.([0-9]+)\.([a-z_]+)\.(.*)")
_FLA_ADAPTER: Final = re.compile(r"([wavg])_lora\.lora\.(2\.bias|0\.weight|2\.weight)")
_PART_NAMES: Final = {fla: blinkdl for blinkdl, fla in _PARTS.items()}
_TIME_MIX_MODULES: Final = {fla: blinkdl for blinkdl, fla in _TIME_MIX.items()}
_ADAPTER_NUMBERS: Final = {fla: number for number, fla in _ADAPTER.items()}
_ADAPTER_NAME: Final = re.compile("[wavg][012]")


def fla_name(name: str) -> str:
    """Return flash-linear-attention's name of the RWKV-7 tensor that BlinkDL calls `name`."""
    match = _BLOCK.fullmatch(name)
    if match is None:
        return _TOP.get(name, name)
    layer, part, rest = match.groups()
    if part == "att" and _ADAPTER_NAME.fullmatch(rest):
        rest = f"{rest[0]}_lora.lora.{_ADAPTER[rest[1]]}"
    elif part == "att":
        module, dot, parameter = rest.partition(".")
        rest = f"{_TIME_MIX.get(module, module)}{dot}{parameter}"
    return f"model.layers.{layer}.{_PARTS.get(part, part)}.{rest}"


def blinkdl_name(name: str) -> str:
    """Return BlinkDL's name of the RWKV-7 tensor that flash-linear-attention calls `name`; see `fla_name`."""
    match = _FLA_BLOCK.fullmatch(name)
    if match is None:
        return {fla: blinkdl for blinkdl, fla in _TOP.items()}.get(name, name)
    layer, part, rest = match.groups()
    if part == "attn":
        module, dot, parameter = rest.partition(".")
        rest = f"{_TIME_MIX_MODULES.get(module, module)}{dot}{parameter}"
        if adapter := _FLA_ADAPTER.fullmatch(rest):
            rest = f"{adapter[1]}{_ADAPTER_NUMBERS[adapter[2]]}"
    return f"blocks.{layer}.{_PART_NAMES.get(part, part)}.{rest}"


def is_transposed(name: str) -> bool:
    """Return True if flash-linear-attention swaps the last two dimensions of the tensor that BlinkDL calls `name`."""
    return re.fullmatch(r"blocks\.[0-9]+\.att\.[wavg][12]", name) is not None


# RWKV-6 and RWKV-7 under the names that they have in flash-linear-attention.
#
# RWKV-6 has the five mixes that depend on the token in the order r, w, k, v, g; BlinkDL's order is w, k, v, r, g. The
# vectors of these mixes are one tensor, and the second halves of their adapters lie side by side in one matrix.

_MARK: Final = re.compile(r"model\.layers\.[0-9]+\.attn\.(r_k|k_k|k_a|x_x|x_bias|bonus)")
_MARK_V6: Final = re.compile(r"model\.layers\.[0-9]+\.attn\.(x_bias|bonus)")
_FLA_LAYER: Final = re.compile(r"model\.layers\.([0-9]+)\.(.*)")
_FUSED_V7: Final = "attn.x_x"  # the six mixes in one tensor, as the first models had them
_MIXES_V7: Final = "rwkvag"
_FUSED_V6: Final = "attn.x_bias"
_MIXES_V6: Final = "rwkvg"
_TO_BLINKDL: Final = Reorder(tuple(_MIXES_V6.index(kind) for kind in "wkvrg"))

_LAYER_V6: Final[dict[str, tuple[str, tuple[StoredStep, ...]]]] = {
    "attn.x_proj.0.mu": ("att.time_maa_x", ()),
    "attn.x_proj.0.linear.weight": ("att.time_maa_w1", (_TO_BLINKDL, Swap())),  # [5 * R, D]
    "attn.x_proj.2.weight": ("att.time_maa_w2", (Swap(), _TO_BLINKDL, Split(len(_MIXES_V6)))),  # [D, 5 * R]
    "attn.w_proj.linear.lora.0.weight": ("att.time_decay_w1", (Swap(),)),
    "attn.w_proj.linear.lora.2.weight": ("att.time_decay_w2", (Swap(),)),
    "attn.w_proj.linear.lora.2.bias": ("att.time_decay", ()),
    "attn.bonus": ("att.time_faaaa", ()),
    "attn.r_proj.linear.weight": ("att.receptance.weight", ()),
    "attn.k_proj.linear.weight": ("att.key.weight", ()),
    "attn.v_proj.linear.weight": ("att.value.weight", ()),
    "attn.g_proj.linear.weight": ("att.gate.weight", ()),
    "ffn.key.linear.weight": ("ffn.key.weight", ()),
    "ffn.key.mu": ("ffn.time_maa_k", ()),
    "ffn.receptance.linear.weight": ("ffn.receptance.weight", ()),
    "ffn.receptance.mu": ("ffn.time_maa_r", ()),
}
"""RWKV-6's tensors of a layer: flash-linear-attention's name -> BlinkDL's name, and the steps that convert it."""


def has_fla_names(names: Iterable[str]) -> bool:
    return any(_MARK.fullmatch(name) for name in names)


def locate_fla(names: Iterable[str]) -> Iterator[tuple[str, StoredTensor]]:
    """Yield how flash-linear-attention stores tensors, by BlinkDL's names; unknown ones keep theirs."""
    names = tuple(names)
    locate = _locate_v6 if any(_MARK_V6.fullmatch(name) for name in names) else _locate_v7
    for name in names:
        yield from locate(name)


def _locate_v7(name: str) -> Iterator[tuple[str, StoredTensor]]:
    block = _FLA_LAYER.fullmatch(name)
    if block and block[2] == _FUSED_V7:
        for index, kind in enumerate(_MIXES_V7):
            yield f"blocks.{block[1]}.att.x_{kind}", StoredTensor(name, (StoredPart(index, len(_MIXES_V7)),))
        return
    own = blinkdl_name(name)
    yield own, StoredTensor(name, (Swap(),) if is_transposed(own) else ())


def _locate_v6(name: str) -> Iterator[tuple[str, StoredTensor]]:
    block = _FLA_LAYER.fullmatch(name)
    if block and block[2] == _FUSED_V6:
        for index, kind in enumerate(_MIXES_V6):
            yield f"blocks.{block[1]}.att.time_maa_{kind}", StoredTensor(name, (StoredPart(index, len(_MIXES_V6)),))
    elif block and block[2] in _LAYER_V6:
        own, steps = _LAYER_V6[block[2]]
        yield f"blocks.{block[1]}.{own}", StoredTensor(name, steps)
    else:
        yield blinkdl_name(name), StoredTensor(name)


_HF_MARK: Final = re.compile(r"rwkv\.blocks\.[0-9]+\.attention\..*")
_PREFIX: Final = "rwkv."
_HF_PARTS: Final = {"pre_ln": "ln0", "attention": "att", "feed_forward": "ffn"}
_MIX: Final = re.compile(r"(blocks\.[0-9]+\.(?:att|ffn)\.time_mix_)(key|value|receptance|gate)")
_HF_BLOCK: Final = re.compile(r"(blocks\.[0-9]+)\.([a-z0-9_]+)\.(.*)")


def has_hf_names(names: Iterable[str]) -> bool:
    return any(_HF_MARK.fullmatch(name) for name in names)


def locate_hf(names: Iterable[str]) -> Iterable[tuple[str, StoredTensor]]:
    """Yield how transformers stores tensors, by BlinkDL's names; unknown ones keep theirs."""
    for name in names:
        yield _blinkdl_name(name), StoredTensor(name)


def _blinkdl_name(name: str) -> str:
    if not name.startswith(_PREFIX):
        return name
    plain = name.removeprefix(_PREFIX)
    if plain == "embeddings.weight":
        return "emb.weight"
    if block := _HF_BLOCK.fullmatch(plain):
        plain = f"{block[1]}.{_HF_PARTS.get(block[2], block[2])}.{block[3]}"
    mix = _MIX.fullmatch(plain)
    return f"{mix[1]}{mix[2][0]}" if mix else plain


# QRWKV6 and ARWKV: the names of Qwen2, with RWKV's time mixing in `self_attn`.
#
# QRWKV6 has the five mixes that depend on the token in the order r, k, v, w, g.

_QWEN2_MARK: Final = re.compile(r"model\.layers\.([0-9]+)\.self_attn\.((time_mixer\.)?r_k|time_maa_x)")
_ATTENTION: Final = re.compile(r"model\.layers\.([0-9]+)\.self_attn\.q_proj\.weight")
_QWEN2_TOP: Final = {**_TOP, "emb.weight": "model.embed_tokens.weight"}
_QWEN2_LAYER: Final = {
    "input_layernorm.weight": "ln1.weight",
    "post_attention_layernorm.weight": "ln2.weight",
    **{f"mlp.{name}_proj.weight": f"ffn.{name}.weight" for name in ("gate", "up", "down")},
}
_QWEN2_MODULES: Final = {"q_proj": "receptance", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
_QWEN2_ORDER: Final = Reorder(tuple("rkvwg".index(kind) for kind in "wkvrg"))


def has_qwen2_names(names: Iterable[str]) -> bool:
    return any(_QWEN2_MARK.fullmatch(name) for name in names)


def locate_qwen2(names: Iterable[str], config: HfConfig) -> Iterator[tuple[str, StoredTensor]]:
    """Yield BlinkDL's name of each tensor of a QRWKV6 or ARWKV, and how the folder stores the tensor.

    `names` are the tensors in the file. An unknown tensor is yielded under its own name. Raises ModelError if a layer
    has softmax attention, or if the config lacks the number of a QRWKV6's heads.
    """
    names = tuple(names)
    recurrent = {match[1] for name in names if (match := _QWEN2_MARK.fullmatch(name))}
    for name in names:
        if (match := _ATTENTION.fullmatch(name)) and match[1] not in recurrent:
            raise ModelError(has_attention(name))
    top = {theirs: own for own, theirs in _QWEN2_TOP.items()}
    for name in names:
        block = _FLA_LAYER.fullmatch(name)
        if block is None:
            yield top.get(name, name), StoredTensor(name)
            continue
        own = _QWEN2_LAYER.get(block[2], block[2])
        if own.startswith("self_attn."):
            module, dot, parameter = own.removeprefix("self_attn.").removeprefix("time_mixer.").partition(".")
            own = f"att.{_QWEN2_MODULES.get(module, module)}{dot}{parameter}"
        yield f"blocks.{block[1]}.{own}", StoredTensor(name, _qwen2_steps(own, config))


def _qwen2_steps(own: str, config: HfConfig) -> tuple[StoredStep, ...]:
    match own:
        case "att.time_maa_w1":  # [D, 5 * R]
            return (Swap(), _QWEN2_ORDER, Swap())
        case "att.time_maa_w2":  # [5, R, D]
            return (_QWEN2_ORDER,)
        case "att.time_decay":  # [1, 1, D]
            return (Rows(config.attention_head_size),)
    return ()


# Read what the config.json of a Hugging Face folder says about the maths; refuse what is not served.

Library = Literal["flash-linear-attention", "transformers", "qwen2"]

_VERSIONS: Final = {
    "rwkv6qwen2": "v6-qwen2",
    "rwkv_hybrid": "v7-qwen2",
    "rwkv": "v4",
    "rwkv5": "v5",
    "rwkv6": "v6",
    "rwkv7": "v7",
}
_NORM_EPSILON: Final = 1e-5
_COMMON: Final[dict[str, tuple[object, ...]]] = {"quantization_config": ()}
_SERVED: Final[Mapping[Library, Mapping[str, tuple[object, ...]]]] = {
    "flash-linear-attention": {
        **_COMMON,
        "attn": (),  # layers of attention between those of RWKV
        "hidden_act": ("sqrelu",),
        "gate_fn": ("swish", "silu"),
        "norm_first": (True,),
        "norm_bias": (True,),
        "norm_eps": (_NORM_EPSILON,),
        "expand_k": (1,),
        "expand_v": (1,),
    },
    "transformers": {**_COMMON, "layer_norm_epsilon": (_NORM_EPSILON,)},
    "qwen2": {
        **_COMMON,
        "hidden_act": ("silu",),
        "wkv_version": (7,),
        "use_rope": (False,),
        "groupnorm_att": (False,),
        "use_tokenshift": (True,),
    },
}
"""The fields of config.json that change a model's computation, with the values that are supported.

A field that is missing or null counts as supported.
"""
_SIZES: Final = {
    "hidden_size": "width",
    "attention_hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_width",
    "vocab_size": "vocab_size",
    "head_dim": "head_size",
    "head_size": "head_size",
    "num_key_value_heads": "num_kv_heads",
}
_HEAD_DIVISOR: Final = 8  # transformers divides the heads' outputs by this, unless the config says another number
_RATIO_STEP: Final = 32  # the channel mix's width is rounded up to a multiple of this if a ratio gives it


@runtime_checkable
class _HasGroupNorm(Protocol):
    """The shape of a model of an RWKV version that normalises heads with a group norm, whose epsilon can be set."""

    @property
    def version(self) -> str: ...

    @property
    def head_size(self) -> int: ...

    def with_group_norm_epsilon(self, epsilon: float) -> ModelShape: ...


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The checked config.json of a folder of `library`. Without the file, `values` is empty and `stamp` None."""

    library: Library
    path: Path
    values: Mapping[str, Any]
    stamp: FileStamp | None

    @classmethod
    def read(cls, folder: Path, library: Library) -> HfConfig:
        """Read a folder's config.json, if any. Raises ModelError if it is damaged or has unsupported options."""
        path = folder / CONFIG_NAME
        values, stamp = read_stamped_json(path) if path.is_file() else ({}, None)
        config = cls(library, path, values, stamp)
        for field, served in _SERVED[library].items():
            if values.get(field) is not None and not any(_same(values[field], value) for value in served):
                raise config._refusal(field, " or ".join(map(repr, served)) or "none")
        return config

    @property
    def ties_head(self) -> bool:
        """True if the embedding is the head, too. Raises ModelError unless the config has a bool or null."""
        tied = self.values.get("tie_word_embeddings")
        if tied not in (None, True, False):
            raise self._refusal("tie_word_embeddings", "true or false")
        return tied is True

    @property
    def attention_head_size(self) -> int:
        """The size of a head of a Qwen2. Raises ModelError if the config does not have it."""
        width, num_heads = (self.values.get(field) for field in ("hidden_size", "num_attention_heads"))
        if type(width) is not int or type(num_heads) is not int or num_heads < 1 or width % num_heads or width < 1:
            found = f"{show(repr(width))} and {show(repr(num_heads))}"
            expected = "numbers of features and of heads, which divides it"
            raise ModelError(f"{self.path}: hidden_size and num_attention_heads are {found}; expected {expected}")
        return width // num_heads

    def apply(self, shape: ModelShape) -> ModelShape:
        """Return the model's `shape` with the epsilons of the group norm and of RMS norms that the config implies.

        A version without a group norm, and with layer norms, keeps its shape.

        Raises ModelError if the config's version or sizes contradict `shape`, which was computed from the tensors.
        """
        self._check_version(shape.version)
        self._check_sizes(shape.sizes)
        epsilon = self.values.get("rms_norm_eps")
        if not shape.norm.centres and epsilon is not None:
            if type(epsilon) is not float or not 0 < epsilon < 1:
                raise self._refusal("rms_norm_eps", "a number above 0")
            shape = shape.with_norm_epsilon(epsilon) or shape
        if not isinstance(shape, _HasGroupNorm):
            return shape
        return shape.with_group_norm_epsilon(self._group_norm_epsilon(shape.version, shape.head_size))

    def _check_version(self, version: str) -> None:
        stated = self.values.get("model_type")
        if self.library == "qwen2" and stated not in _VERSIONS:
            return
        if stated is not None and (not isinstance(stated, str) or not version.startswith(_VERSIONS.get(stated, "?"))):
            expected = next((kind for kind, number in _VERSIONS.items() if version.startswith(number)), "none")
            raise self._refusal("model_type", f"{expected}, as the tensors have it")

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        for field, size in _SIZES.items():
            stated = self.values.get(field)
            if stated is not None and size in sizes and stated != sizes[size]:
                raise self._refusal(field, f"{sizes[size]}, as the tensors have it")
        if self.library != "flash-linear-attention":
            return
        if self.values.get("head_dim") is None and self.values.get("num_heads") not in (None, sizes["num_heads"]):
            raise self._refusal("num_heads", f"{sizes['num_heads']}, as the tensors have it")
        if self.values.get("intermediate_size") is None:
            self._check_ratio(sizes)
        values = self.values.get("value_dim")
        for stated in values if isinstance(values, list) else [values]:
            if stated not in (None, sizes["width"]):
                raise self._refusal("value_dim", f"{sizes['width']}, the hidden_size, for every layer")

    def _check_ratio(self, sizes: Mapping[str, int]) -> None:
        ratio = self.values.get("hidden_ratio")
        if ratio is None:
            return
        if type(ratio) not in (int, float) or not 0 < ratio < 1e6:
            raise self._refusal("hidden_ratio", "a number above 0")
        expected = -(-int(sizes["width"] * ratio) // _RATIO_STEP) * _RATIO_STEP
        if expected != sizes["ffn_width"]:
            raise self._refusal(
                "hidden_ratio", f"a ratio that gives the ffn width {sizes['ffn_width']}, not {expected}"
            )

    def _group_norm_epsilon(self, version: str, head_size: int) -> float:
        if self.library == "flash-linear-attention":
            return _NORM_EPSILON * (head_size if version == "v7" else 1)
        divisor = self.values.get("head_size_divisor")
        divisor = _HEAD_DIVISOR if divisor is None else divisor
        if type(divisor) not in (int, float) or not 0 < divisor < 1e6:
            raise self._refusal("head_size_divisor", "a number above 0")
        return _NORM_EPSILON * float(divisor) ** 2

    def _refusal(self, field: str, expected: str) -> ModelError:
        return ModelError(f"{self.path}: {field} is {show(repr(self.values[field]))}; expected {expected}")


def _same(stated: object, value: object) -> bool:
    if isinstance(value, float):
        return isinstance(stated, float) and isclose(stated, value, rel_tol=1e-6)
    return stated == value and isinstance(stated, bool) == isinstance(value, bool)


# Open the tensors of a Hugging Face folder: one file, or shards that an index lists.

CONFIG_NAME: Final = "config.json"
_FILES: Final = ("model.safetensors", "pytorch_model.bin")
_INDEX_ENDING: Final = ".index.json"
_LONGEST_NAME: Final = 255  # bytes; the limit of most file systems
_MOST_SHARDS: Final = 512  # each is an open file


def open_folder(folder: Path) -> TensorSource:
    """Open the weights in a Hugging Face folder: safetensors rather than torch's format, one file rather than shards.

    Transformers has the same order. Raises ModelError if the folder has no weights or no config.json, or if the index
    and the shards contradict each other.
    """
    if not (folder / CONFIG_NAME).is_file():
        raise ModelError(f"{folder} has no {CONFIG_NAME}; expected a Hugging Face folder, or the path of a model file")
    for name in _FILES:
        if (folder / name).is_file():
            return open_source(folder / name)
        if (folder / f"{name}{_INDEX_ENDING}").is_file():
            return _open_shards(folder / f"{name}{_INDEX_ENDING}")
    allowed = ", ".join(f"{name}, {name}{_INDEX_ENDING}" for name in _FILES)
    raise ModelError(f"{folder} has no model file; expected one of {allowed}")


def _open_shards(index: Path) -> JoinedFiles:
    shards = _read_index(index)
    if missing := [name for name in shards if not (index.parent / name).is_file()]:
        raise ModelError(
            f"{index} lists {count(missing, 'file')} that the folder lacks: {show_all(missing)}; "
            "is the download complete?"
        )
    with ExitStack() as undo:
        sources = []
        for name, expected in shards.items():
            source = open_source(index.parent / name)
            undo.callback(source.close)
            _check_shard(index, name, expected, set(source.tensors))
            sources.append(source)
        undo.pop_all()
    return JoinedFiles(sources)


def _read_index(path: Path) -> dict[str, set[str]]:
    """Return the names of the tensors of each shard that an index lists. Raises ModelError for a damaged index."""
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelError(
            f"{path}: weight_map is {show(repr(found))}; expected an object from tensor names to file names"
        )
    shards: dict[str, set[str]] = defaultdict(set)
    for tensor, file in found.items():
        _check_file_name(path, tensor, file)
        shards[file].add(tensor)
    if len(shards) > _MOST_SHARDS:
        raise ModelError(f"{path} lists {len(shards)} files; expected at most {_MOST_SHARDS}")
    return dict(sorted(shards.items()))


def _check_file_name(path: Path, tensor: str, file: Any) -> None:  # noqa: ANN401
    """Raise ModelError unless `file`, where the index at `path` has `tensor`, is a plain name without a folder."""
    is_name = isinstance(file, str) and 0 < len(file.encode(errors="surrogatepass")) <= _LONGEST_NAME
    if not is_name or file in (".", "..") or set(file) & set("/\\:\0"):
        raise ModelError(
            f"{path}: tensor {show(tensor)} is in {show(repr(file))}; expected the name of a file in the same folder"
        )


def _check_shard(index: Path, name: str, expected: set[str], found: set[str]) -> None:
    if missing := sorted(expected - found):
        raise ModelError(
            f"{index.parent / name} lacks {count(missing, 'tensor')} that {index.name} places there: "
            f"{show_all(missing)}"
        )
    if unlisted := sorted(found - expected):
        raise ModelError(
            f"{index.parent / name} has {count(unlisted, 'tensor')} that {index.name} does not place there: "
            f"{show_all(unlisted)}"
        )
