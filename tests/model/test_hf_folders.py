"""A Hugging Face folder is read as the model written to it, and its config.json is obeyed or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rnn_engine.errors import ModelError
from rnn_engine.loading.memory import inspect_model
from rnn_engine.loading.runner import open_model
from rnn_engine.types import ModelShape
from rnn_engine.versions.shared.layout import HeadsShape
from tests.support.hf import Library, hf_config, hf_tensors, save_folder, save_hf
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6, tiny_v6_qwen2, tiny_v7_qwen2
from tests.support.reference import forward

V7 = random_model(tiny_shape(head_size=64), seed=1, layer0_v=False)
V6 = random_model(tiny_v6(layers=3), seed=2)
TOKENS = [1, 17, 3, 95, 40, 2, 2]
CASES: dict[str, tuple[TensorModel, Library]] = {
    "v7 fla": (V7, "fla"),
    "v7 fla, heads of 16": (random_model(tiny_shape(), seed=3, layer0_v=False), "fla"),
    "v6 fla": (V6, "fla"),
    "v6 transformers": (V6, "transformers"),
    "v5.2 transformers": (random_model(tiny_v5("v5.2"), seed=4), "transformers"),
    "v5.1 transformers": (random_model(tiny_v5("v5.1"), seed=4), "transformers"),
    "v6 in a Qwen2": (random_model(tiny_v6_qwen2(), seed=5), "qwen2"),
    "v7 in a Qwen2": (random_model(tiny_v7_qwen2(), seed=5), "qwen2"),
    "v4 transformers": (random_model(tiny_v4(), seed=5), "transformers"),
}
EPSILONS = {"v7 fla": 64e-5, "v7 fla, heads of 16": 16e-5, "v6 fla": 1e-5}  # 64e-5 for all others
every_case = pytest.mark.parametrize(("model", "library"), CASES.values(), ids=CASES)


def _with_epsilon(shape: ModelShape, epsilon: float) -> HeadsShape:
    assert isinstance(shape, HeadsShape)
    return shape.with_group_norm_epsilon(epsilon)


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    return str(caught.value).replace(str(folder), "FOLDER")


def change_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_model_that_went_in(case: str, num_shards: int, tmp_path: Path) -> None:
    model, library = CASES[case]
    shape = model.shape
    if isinstance(shape, HeadsShape):
        shape = _with_epsilon(shape, EPSILONS.get(case, 64e-5))
    expected, _ = forward(TensorModel(shape, model.tensors), TOKENS)
    with open_model(save_hf(model, tmp_path / "folder", library, num_shards)) as opened:
        assert opened.shape == shape
        assert set(opened.names) == set(model.names)
        np.testing.assert_array_equal(forward(opened, TOKENS)[0], expected)


@every_case
def test_the_fingerprint_is_that_of_the_same_model_in_blinkdl_names(
    model: TensorModel, library: Library, tmp_path: Path
) -> None:
    with (
        open_model(save_safetensors(model, tmp_path / "plain.safetensors", "f32")) as plain,
        open_model(save_hf(model, tmp_path / "one", library)) as one,
        open_model(save_hf(model, tmp_path / "shards", library, 4)) as shards,
    ):
        assert one.fingerprint == shards.fingerprint
        assert (one.fingerprint == plain.fingerprint) == (one.shape == plain.shape)


def test_a_change_in_any_shard_changes_the_fingerprint(tmp_path: Path) -> None:
    tensors, config = hf_tensors(V7, "fla"), hf_config(V7, "fla")
    found = set()
    for number, name in enumerate(list(tensors)[:3]):
        other = {**tensors, name: tensors[name] + 1}
        with open_model(save_folder(tmp_path / str(number), other, config, num_shards=3)) as opened:
            found.add(opened.fingerprint)
    assert len(found) == 3


def test_files_of_torch(tmp_path: Path) -> None:
    tensors, config = hf_tensors(V6, "fla"), hf_config(V6, "fla")
    expected, _ = forward(TensorModel(_with_epsilon(V6.shape, 1e-5), V6.tensors), TOKENS)
    for num_shards in (1, 2):
        folder = save_folder(tmp_path / str(num_shards), tensors, config, num_shards=num_shards, torch=True)
        with open_model(folder) as opened:
            np.testing.assert_array_equal(forward(opened, TOKENS)[0], expected)


def test_a_file_in_a_folder_obeys_the_config_beside_it(tmp_path: Path) -> None:
    folder = save_hf(V6, tmp_path / "folder", "fla")
    with open_model(folder) as whole, open_model(folder / "model.safetensors") as file:
        assert (file.shape, file.fingerprint) == (whole.shape, whole.fingerprint)
    change_config(folder, norm_eps=1e-6)
    assert "norm_eps is 1e-06; expected 1e-05" in refusal(folder / "model.safetensors")
    (folder / "config.json").unlink()
    with open_model(folder / "model.safetensors") as file:
        assert file.shape == _with_epsilon(V6.shape, 1e-5)
    assert refusal(folder) == "FOLDER has no config.json; expected a Hugging Face folder, or the path of a model file"


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    tied = TensorModel(V7.shape, {**V7.tensors, "head.weight": V7.tensor("emb.weight")})
    tensors, config = hf_tensors(tied, "fla"), hf_config(tied, "fla")
    del tensors["lm_head.weight"]
    folder = save_folder(tmp_path / "tied", tensors, config | {"tie_word_embeddings": True})
    with open_model(folder) as opened, open_model(save_hf(tied, tmp_path / "untied", "fla")) as untied:
        np.testing.assert_array_equal(forward(opened, TOKENS)[0], forward(tied, TOKENS)[0])
        assert opened.fingerprint == untied.fingerprint
    assert "1 tensor missing: head.weight" in refusal(change_config(folder, tie_word_embeddings=False))
    assert "tie_word_embeddings is 1.5; expected true or false" in refusal(
        change_config(folder, tie_word_embeddings=1.5)
    )


def test_the_six_mixes_of_the_first_models_of_rwkv_7(tmp_path: Path) -> None:
    tensors = hf_tensors(V7, "fla")
    for layer in range(V7.shape.num_layers):
        mixes = [tensors.pop(f"model.layers.{layer}.attn.x_{kind}").reshape(-1) for kind in "rwkvag"]
        tensors[f"model.layers.{layer}.attn.x_x"] = np.stack(mixes)
    with open_model(save_folder(tmp_path / "folder", tensors, hf_config(V7, "fla"))) as opened:
        np.testing.assert_array_equal(forward(opened, TOKENS)[0], forward(V7, TOKENS)[0])
    twice = {**tensors, "model.layers.1.attn.x_r": np.ones(V7.shape.width, np.float32)}
    said = refusal(save_folder(tmp_path / "twice", twice, hf_config(V7, "fla")))
    assert "model.layers.1.attn.x_r and model.layers.1.attn.x_x both stand for blocks.1.att.x_r" in said or (
        "model.layers.1.attn.x_x and model.layers.1.attn.x_r both stand for blocks.1.att.x_r" in said
    )


def test_a_divisor_of_heads_is_an_epsilon(tmp_path: Path) -> None:
    usual = save_hf(V6, tmp_path / "usual", "transformers")
    with open_model(usual) as absent, open_model(change_config(usual, head_size_divisor=None)) as null:
        assert null.shape == absent.shape
    with open_model(save_hf(V6, tmp_path / "folder", "transformers", head_size_divisor=1)) as opened:
        assert opened.shape == _with_epsilon(V6.shape, 1e-5)


FLA: list[tuple[dict[str, Any], str]] = [
    ({"norm_eps": 1e-6}, "norm_eps is 1e-06; expected 1e-05"),
    ({"norm_eps": "1e-5"}, "norm_eps is '1e-5'; expected 1e-05"),
    ({"norm_first": False}, "norm_first is False; expected True"),
    ({"norm_bias": 1}, "norm_bias is 1; expected True"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu'; expected 'sqrelu'"),
    ({"attn": {"layers": [1], "num_heads": 2}}, "attn is {'layers': [1], 'num_heads': 2}; expected none"),
    ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config is {'quant_method': 'bits"),
    ({"model_type": "rwkv6"}, "model_type is 'rwkv6'; expected rwkv7, as the tensors have it"),
    ({"model_type": ["rwkv7"]}, "model_type is ['rwkv7']; expected rwkv7"),
    ({"model_type": "llama"}, "model_type is 'llama'; expected rwkv7"),
    ({"hidden_size": 128}, "hidden_size is 128; expected 64, as the tensors have it"),
    ({"hidden_size": "64"}, "hidden_size is '64'; expected 64"),
    ({"num_hidden_layers": 3}, "num_hidden_layers is 3; expected 2"),
    ({"vocab_size": 0}, "vocab_size is 0; expected 96"),
    ({"head_dim": 32}, "head_dim is 32; expected 64"),
    ({"head_dim": None, "num_heads": 2}, "num_heads is 2; expected 1"),
    ({"intermediate_size": 224}, "intermediate_size is 224; expected 256"),
    (
        {"intermediate_size": None, "hidden_ratio": 3.5},
        "hidden_ratio is 3.5; expected a ratio that gives the ffn width 256",
    ),
    ({"intermediate_size": None, "hidden_ratio": "4"}, "hidden_ratio is '4'; expected a number above 0"),
    ({"intermediate_size": None, "hidden_ratio": float("nan")}, "hidden_ratio is nan; expected a number above 0"),
    ({"value_dim": 128}, "value_dim is 128; expected 64, the hidden_size, for every layer"),
    ({"value_dim": [64, 128]}, "value_dim is [64, 128]; expected 64"),
]


@pytest.mark.parametrize(("changes", "message"), FLA, ids=lambda value: str(value)[:40])
def test_a_config_of_fla_that_is_not_served_is_refused_by_field_and_value(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = change_config(save_hf(V7, tmp_path / "folder", "fla"), **changes)
    said = refusal(folder)
    assert said.startswith("FOLDER/config.json: ")
    assert message in said


def test_what_leaves_the_maths_alone_is_allowed(tmp_path: Path) -> None:
    changes = {"num_heads": 32, "value_dim": [64, 64], "hidden_ratio": 3, "fuse_norm": False, "attn_mode": "chunk"}
    with open_model(change_config(save_hf(V7, tmp_path / "folder", "fla"), **changes)) as opened:
        assert opened.shape == V7.shape
    nulls = save_folder(tmp_path / "nulls", hf_tensors(V7, "fla"), dict.fromkeys(hf_config(V7, "fla")))
    with open_model(change_config(nulls, norm_first=None, norm_eps=None, gate_fn=None, expand_v=None)) as opened:
        assert opened.shape == V7.shape
    empty = save_folder(tmp_path / "empty", hf_tensors(V7, "fla"), {})
    with open_model(empty) as opened:
        assert opened.shape == V7.shape


@pytest.mark.parametrize(
    ("library", "changes", "message"),
    [
        ("fla", {"expand_k": 0.5}, "expand_k is 0.5; expected 1"),
        ("fla", {"gate_fn": "relu"}, "gate_fn is 'relu'; expected 'swish' or 'silu'"),
        ("transformers", {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06; expected 1e-05"),
        ("transformers", {"attention_hidden_size": 128}, "attention_hidden_size is 128; expected 64"),
        ("transformers", {"head_size": 64}, "head_size is 64; expected 16"),
        ("transformers", {"head_size_divisor": 0}, "head_size_divisor is 0; expected a number above 0"),
        ("transformers", {"head_size_divisor": "8"}, "head_size_divisor is '8'; expected a number above 0"),
    ],
)
def test_a_config_of_rwkv_6_that_is_not_served(
    library: Library, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in refusal(change_config(save_hf(V6, tmp_path / "folder", library), **changes))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"norm_eps": 1e-5, "norm_eps": 1e-6}', b"[" * 100_000])
def test_a_config_that_is_damaged(content: bytes, tmp_path: Path) -> None:
    folder = save_hf(V7, tmp_path / "folder", "fla")
    (folder / "config.json").write_bytes(content)
    assert refusal(folder).startswith("FOLDER/config.json ")


def test_names_that_are_no_ones(tmp_path: Path) -> None:
    said = refusal(save_folder(tmp_path / "a", {"bert.weight": np.ones(3, np.float32)}, {}))
    assert "no tensor has a name of flash-linear-attention or transformers for an RWKV" in said
    assert said.endswith("found bert.weight")


def test_inspection_counts_the_bytes_of_all_shards(tmp_path: Path) -> None:
    folder = save_hf(V7, tmp_path / "folder", "fla", 3)
    with open_model(folder) as opened:
        found = inspect_model(opened, device_memory=1 << 30)
    assert found.file == str(folder)
    assert found.file_bytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))


QRWKV6 = CASES["v6 in a Qwen2"][0]


def test_the_epsilon_of_rms_norms_is_the_configs(tmp_path: Path) -> None:
    with open_model(save_hf(QRWKV6, tmp_path / "folder", "qwen2", rms_norm_eps=1e-5)) as opened:
        assert opened.shape.settings == "RMS norm epsilon 1e-05"
    said = refusal(save_hf(QRWKV6, tmp_path / "other", "qwen2", rms_norm_eps=0.0))
    assert said == "FOLDER/config.json: rms_norm_eps is 0.0; expected a number above 0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": None}, "hidden_size and num_attention_heads are 64 and None; expected numbers of"),
        ({"num_attention_heads": 7}, "hidden_size and num_attention_heads are 64 and 7; expected numbers of"),
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4; expected 2, as the tensors have it"),
        ({"use_rope": True}, "use_rope is True; expected False"),
        ({"groupnorm_att": True}, "groupnorm_att is True; expected False"),
    ],
)
def test_settings_of_a_qrwkv6_that_are_not_computed_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in refusal(save_hf(QRWKV6, tmp_path / "folder", "qwen2", **changes))


def test_layers_of_softmax_attention_are_refused_by_what_they_are(tmp_path: Path) -> None:
    """As in hxa07, RWKV-X and RWKV-7b."""
    tensors = hf_tensors(QRWKV6, "qwen2")
    some = {name: values for name, values in tensors.items() if "layers.1.self_attn.time_" not in name}
    said = refusal(save_folder(tmp_path / "hxa07", some, hf_config(QRWKV6, "qwen2")))
    assert "model.layers.1.self_attn.q_proj.weight belongs to softmax attention, which some layers of RWKV-X" in said
    matrix = np.ones((64, 64), np.float32)
    for name in ("moba.0.att.key.weight", "blocks.1.qkv.k1"):
        save_file({**V7.tensors, name: matrix}, tmp_path / "a.st")
        assert f"{name} belongs to softmax attention" in refusal(tmp_path / "a.st")
