"""LoRAs are merged as their files say. The error of one that does not fit names the tensor."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.loading.runner import open_model
from rnn_engine.model import LoraChoice
from rnn_engine.model.lora import write_lora
from rnn_engine.tensor_files.formats import open_source
from tests.support.loras import draw, draw_pair, save, save_ai00, save_peft
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.older_models import tiny_v6
from tests.support.pth import save_pth

MODEL = random_model(tiny_shape(ffn=100), seed=1)
KEY, FFN, W1, MIX = "blocks.1.att.key", "blocks.0.ffn.value", "blocks.1.att.w1", "blocks.0.att.x_r"
PAIR = draw_pair(MODEL, f"{KEY}.weight", rank=4)
PEFT_KEY = "model.layers.1.attn.k_proj"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_safetensors(MODEL, tmp_path / "model.safetensors", "f32")


def assert_merged(path: Path, choices: list[LoraChoice], changed: Mapping[str, NDArray[Any]]) -> None:
    """Assert that the merged model has the tensors of `changed`, and otherwise those of the file."""
    with open_model(path) as plain, open_model(path, choices) as merged:
        assert merged.names == plain.names
        assert merged.shape == plain.shape
        for name in plain.names:
            found = merged.tensor(name)
            expected = changed.get(name, plain.tensor(name))
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=name)
            assert merged.tensors[name].dtype == found.dtype
            assert not found.flags.writeable


def test_a_pair_of_ai00_is_added(path: Path, tmp_path: Path) -> None:
    value_pair = draw_pair(MODEL, f"{FFN}.weight", rank=7, seed=5)
    file = save_ai00({KEY: PAIR, FFN: value_pair}, tmp_path / "lora.st")
    expected = {
        f"{KEY}.weight": MODEL.tensor(f"{KEY}.weight") + 32 / 4 * PAIR[1] @ PAIR[0],
        f"{FFN}.weight": MODEL.tensor(f"{FFN}.weight") + 32 / 7 * value_pair[1] @ value_pair[0],
    }
    assert_merged(path, [LoraChoice(file, 32.0)], expected)


@pytest.mark.parametrize("name", ["lora.pth", "lora.safetensors"])
def test_a_lora_that_was_written_is_merged_as_rwkv_peft_merges_it(path: Path, tmp_path: Path, name: str) -> None:
    """By the names and the formula of its merge/merge_lora.py, which is given the alpha, too."""
    alpha, file = 8.0, tmp_path / name
    down, up = draw_pair(MODEL, f"{FFN}.weight", rank=3, seed=6)
    halves = {f"{KEY}.lora_A": PAIR[0], f"{KEY}.lora_B": PAIR[1], f"{FFN}.lora_A": down, f"{FFN}.lora_B": up}
    write_lora(file, halves, alpha, {})
    with closing(open_source(file)) as written:
        w = {**MODEL.tensors, **{stored: written.read(stored) for stored in written.tensors}}
    changed = {}
    for weight in [weight for weight in w if weight.endswith(".weight")]:
        lora_a, lora_b = (f"{weight.removesuffix('.weight')}.lora_{half}" for half in "AB")
        if lora_a in w:
            changed[weight] = w[weight] + w[lora_b] @ w[lora_a] * (alpha / w[lora_b].shape[1])
    assert set(changed) == {f"{KEY}.weight", f"{FFN}.weight"}
    assert_merged(path, [LoraChoice(file, alpha if file.suffix == ".pth" else None)], changed)


def test_a_folder_of_peft_that_was_written_is_merged(path: Path, tmp_path: Path) -> None:
    down, up = draw_pair(MODEL, f"{FFN}.weight", rank=4, seed=6)
    halves = {f"{KEY}.lora_A": PAIR[0], f"{KEY}.lora_B": PAIR[1], f"{FFN}.lora_A": down, f"{FFN}.lora_B": up}
    write_lora(tmp_path / "peft", halves, 8.0, {})
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8.0)
    assert config["target_modules"] == ["attn.k_proj", "ffn.value"]
    written = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    np.testing.assert_array_equal(written[f"base_model.model.{PEFT_KEY}.lora_B.weight"], PAIR[1])
    expected = {
        f"{KEY}.weight": MODEL.tensor(f"{KEY}.weight") + 2.0 * PAIR[1] @ PAIR[0],
        f"{FFN}.weight": MODEL.tensor(f"{FFN}.weight") + 2.0 * up @ down,
    }
    assert_merged(path, [LoraChoice(tmp_path / "peft")], expected)


def test_a_pair_of_blinkdl_is_added(path: Path, tmp_path: Path) -> None:
    halves = TensorModel(MODEL.shape, {f"{KEY}.lora_A": PAIR[0], f"{KEY}.lora_B": PAIR[1]})
    expected = {f"{KEY}.weight": MODEL.tensor(f"{KEY}.weight") + 2.0 * PAIR[1] @ PAIR[0]}
    assert_merged(path, [LoraChoice(save_pth(halves, tmp_path / "lora.pth"), 8.0)], expected)


def test_plain_vectors_replace_and_matrices_add(path: Path, tmp_path: Path) -> None:
    mix, key, adapter = draw(1, 1, 1, 64), draw(2, 64, 64), draw(3, 64, 16)
    expected = {
        MIX: mix.reshape(-1),
        f"{KEY}.weight": MODEL.tensor(f"{KEY}.weight") + 0.5 * key,
        W1: MODEL.tensor(W1) + adapter,
    }
    as_blinkdl = save({MIX: mix, f"{KEY}.weight": key, W1: adapter}, tmp_path / "lora.safetensors")
    as_ai00 = save({MIX: mix, f"{KEY}.weight": key, W1: adapter.T}, tmp_path / "lora.st")
    assert_merged(path, [LoraChoice(as_blinkdl, 0.5)], expected)
    assert_merged(path, [LoraChoice(as_ai00, 0.5)], expected)


def test_pissas_initial_pairs_are_subtracted(path: Path, tmp_path: Path) -> None:
    initial = draw_pair(MODEL, f"{KEY}.weight", rank=4, seed=3)
    trained = save({f"{KEY}.lora_A": PAIR[0], f"{KEY}.lora_B": PAIR[1], MIX: draw(1, 64)}, tmp_path / "pissa.pth")
    start = save({f"{KEY}.init_lora_A": initial[0], f"{KEY}.init_lora_B": initial[1]}, tmp_path / "init.pth")
    weight = MODEL.tensor(f"{KEY}.weight") - initial[1] @ initial[0] + PAIR[1] @ PAIR[0]
    assert_merged(path, [LoraChoice(trained, 4.0), LoraChoice(start)], {f"{KEY}.weight": weight, MIX: draw(1, 64)})


@pytest.mark.parametrize("rank", [1, 6, 64])  # 6 does not divide the 64 and the 100 columns
def test_a_disha_is_added_to_every_few_columns(rank: int, path: Path, tmp_path: Path) -> None:
    key, value, head = draw(1, rank, 64), draw(2, rank, 64), draw(3, 96, 64)
    file = save({f"{KEY}.disha": key, f"{FFN}.disha": value, "head.weight": head}, tmp_path / "disha.pth")
    expected = {"head.weight": head}  # what else was trained replaces the model's
    for name, shards in ((KEY, key), (FFN, value)):
        weight = expected[f"{name}.weight"] = MODEL.tensor(f"{name}.weight").copy()
        for column in range(weight.shape[1]):
            weight[:, column] += shards[column % rank]
    assert_merged(path, [LoraChoice(file)], expected)


@pytest.mark.parametrize("kind", ["disha", "bone"])
@pytest.mark.parametrize("rank", [1, 4, 64])
def test_blocks_change_the_weight_by_blocks(rank: int, kind: str, path: Path, tmp_path: Path) -> None:
    blocks = draw(1, 64 // rank, rank, rank)
    file = save({f"{KEY}.{kind}": blocks}, tmp_path / "bat.pth")
    weight = MODEL.tensor(f"{KEY}.weight").copy()
    for row in range(0, 64, rank):
        for number, block in enumerate(blocks):
            part = weight[row : row + rank, number * rank : (number + 1) * rank]
            part += part @ block + block
    assert_merged(path, [LoraChoice(file)], {f"{KEY}.weight": weight})


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((0, 64), KEY),
        ((65, 64), KEY),
        ((4, 63), KEY),
        ((16, 4, 5), KEY),
        ((15, 4, 4), KEY),
        ((20, 5, 5), FFN),
        ((4,), KEY),
    ],
)
def test_shards_that_do_not_fit_are_named(shape: tuple[int, ...], name: str, path: Path, tmp_path: Path) -> None:
    file = save({f"{name}.disha": draw(1, *shape)}, tmp_path / "disha.pth")
    with pytest.raises(ModelError, match=rf"{name}.disha is \[.*\]; expected \[R, 64\], or \["):
        open_model(path, [LoraChoice(file)])


def test_shards_of_what_is_no_matrix_are_named(path: Path, tmp_path: Path) -> None:
    file = save({f"{MIX}.disha": draw(1, 4, 64), "blocks.9.att.key.bone": draw(1, 4, 64)}, tmp_path / "disha.pth")
    with pytest.raises(ModelError, match=r"1 tensor that the model has no place for: blocks\.9\.att\.key\.bone"):
        open_model(path, [LoraChoice(file)])
    file = save({f"{MIX}.disha": draw(1, 4, 64)}, tmp_path / "vector.pth")
    with pytest.raises(
        ModelError, match=r"blocks.0.att.x_r.disha is for blocks.0.att.x_r, which is \[64\]; expected a"
    ):
        open_model(path, [LoraChoice(file)])


def test_ai00s_names_of_an_older_version(tmp_path: Path) -> None:
    model = random_model(tiny_v6(), seed=2)
    mix, bonus = draw(1, 64), draw(2, 4, 16)
    file = save({"blocks.0.att.time_mix_r": mix, "blocks.1.att.time_first": bonus}, tmp_path / "lora.st")
    expected = {"blocks.0.att.time_maa_r": mix, "blocks.1.att.time_faaaa": bonus}
    assert_merged(save_safetensors(model, tmp_path / "v6.safetensors", "f32"), [LoraChoice(file)], expected)


@pytest.mark.parametrize(
    ("config", "alpha", "scale"),
    [
        ({}, None, 4.0),
        ({}, 2.0, 0.5),
        ({"use_rslora": True}, None, 8.0),
        ({"alpha_pattern": {"1.attn.k_proj": 4}}, None, 1.0),
        ({"r": 3, "rank_pattern": {"k_proj": 4}}, None, 4.0),
    ],
)
def test_a_pair_of_peft_is_scaled_as_its_config_says(
    config: dict[str, object], alpha: float | None, scale: float, path: Path, tmp_path: Path
) -> None:
    folder = save_peft({PEFT_KEY: PAIR}, tmp_path / "peft", {"r": 4, "lora_alpha": 16, **config})
    expected = {f"{KEY}.weight": MODEL.tensor(f"{KEY}.weight") + scale * PAIR[1] @ PAIR[0]}
    assert_merged(path, [LoraChoice(folder, alpha)], expected)


def test_peft_may_change_adapters_and_replace_tensors(path: Path, tmp_path: Path) -> None:
    down, up = draw(1, 3, 64), draw(2, 16, 3)  # for a matrix [16, 64] as in the module
    head, bias = draw(3, 96, 64), draw(4, 64)
    pairs = {"model.layers.1.attn.w_lora.lora.0": (down, up)}
    folder = save_peft(pairs, tmp_path / "peft", {"r": 3, "lora_alpha": 6})
    file = folder / "adapter_model.safetensors"
    whole = {"lm_head.weight": head, "model.layers.0.attn.w_lora.lora.2.bias": bias}
    save({**load_file(file), **{f"base_model.model.{name}": values for name, values in whole.items()}}, file)
    expected = {W1: MODEL.tensor(W1) + 2.0 * (up @ down).T, "head.weight": head, "blocks.0.att.w0": bias}
    assert_merged(path, [LoraChoice(folder)], expected)


def test_several_are_merged_one_after_another(path: Path, tmp_path: Path) -> None:
    other = draw_pair(MODEL, f"{KEY}.weight", rank=2, seed=9)
    first = LoraChoice(save_ai00({KEY: PAIR}, tmp_path / "a.st"), 4.0)
    second = LoraChoice(save_peft({PEFT_KEY: other}, tmp_path / "peft", {"r": 2, "lora_alpha": 2}))
    merged = MODEL.tensor(f"{KEY}.weight") + PAIR[1] @ PAIR[0] + other[1] @ other[0]
    assert_merged(path, [first, second], {f"{KEY}.weight": merged})


def test_everything_that_changes_weights_changes_the_fingerprint(path: Path, tmp_path: Path) -> None:
    file = save_ai00({KEY: PAIR}, tmp_path / "a.st")
    other = save_ai00({KEY: draw_pair(MODEL, f"{KEY}.weight", rank=4, seed=3)}, tmp_path / "b.st")
    peft = [
        LoraChoice(save_peft({PEFT_KEY: PAIR}, tmp_path / f"peft{alpha}", {"r": 4, "lora_alpha": alpha}))
        for alpha in (1, 2)
    ]
    cases = [[], [LoraChoice(file, 4.0)], [LoraChoice(file, 5.0)], [LoraChoice(other, 4.0)]]
    cases += [[LoraChoice(file, 4.0), LoraChoice(other, 4.0)], *([choice] for choice in peft)]
    found = set()
    for choices in cases:
        with open_model(path, choices) as first, open_model(path, choices) as again:
            assert first.fingerprint == again.fingerprint
            found.add(first.fingerprint)
    assert len(found) == len(cases)


Tensors = dict[str, NDArray[Any]]
BAD_FILES: dict[str, tuple[Tensors, str]] = {
    "nothing": ({}, "no tensor"),
    "no such layer": (
        {"blocks.7.att.key.lora.0": PAIR[0].T, "blocks.7.att.key.lora.1": PAIR[1]},
        "2 tensors that the model has no place for: blocks.7.att.key.lora.0; blocks.7.att.key.lora.1",
    ),
    "no such tensor": ({"blocks.0.att.time_state": draw(1, 4, 16, 16)}, "no place for: blocks.0.att.time_state"),
    "half a pair": ({f"{KEY}.lora.0": PAIR[0].T}, f"{KEY}.lora.0 has no {KEY}.lora.1"),
    "two ranks": (
        {f"{KEY}.lora.0": PAIR[0].T, f"{KEY}.lora.1": PAIR[1][:, :3]},
        rf"{KEY}.lora.0 is \[64, 4\] and {KEY}.lora.1 is \[64, 3\]; expected \[64, R\] and \[64, R\] with one rank R",
    ),
    "another width": ({f"{KEY}.lora.0": PAIR[0].T[:50], f"{KEY}.lora.1": PAIR[1]}, r"is \[50, 4\]"),
    "no matrix": ({f"{KEY}.lora.0": draw(1, 4), f"{KEY}.lora.1": PAIR[1]}, r"is \[4\]; expected a matrix"),
    "rank 0": ({f"{KEY}.lora.0": draw(1, 64, 0), f"{KEY}.lora.1": draw(1, 64, 0)}, r"is \[64, 0\]; expected a matrix"),
    "a pair for a vector": ({f"{MIX}.lora.0": PAIR[0].T, f"{MIX}.lora.1": PAIR[1]}, r"which is \[64\]; expected a ma"),
    "a long vector": ({MIX: draw(1, 65)}, rf"{MIX} is \[65\]; expected \[64\], as {MIX} is"),
    "two changes": (
        {f"{KEY}.lora.0": PAIR[0].T, f"{KEY}.lora.1": PAIR[1], f"{KEY}.weight": draw(1, 64, 64)},
        f"it changes {KEY}.weight twice",
    ),
    "whole numbers": ({MIX: np.arange(64)}, f"1 tensor of the wrong element type: {MIX} is int64"),
}


@pytest.mark.parametrize(("tensors", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_file_that_does_not_fit_is_refused(tensors: Tensors, message: str, path: Path, tmp_path: Path) -> None:
    file = save(tensors, tmp_path / "lora.safetensors")
    with pytest.raises(ModelError, match=f"lora.safetensors: .*{message}"):
        open_model(path, [LoraChoice(file, 4.0)])


def test_numbers_that_overflow_are_refused(path: Path, tmp_path: Path) -> None:
    file = save_ai00({KEY: (np.full((4, 64), 1e30, np.float32), np.full((64, 4), 1e30, np.float32))}, tmp_path / "a.st")
    with (
        open_model(path, [LoraChoice(file, 4.0)]) as merged,
        pytest.raises(ModelError, match=f"a.st: {KEY}.weight is not finite once this LoRA is merged"),
    ):
        merged.tensor(f"{KEY}.weight")


def test_a_file_of_pairs_needs_an_alpha(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"lora\.st: the file does not contain its alpha; expected FILE:ALPHA"):
        open_model(path, [LoraChoice(save_ai00({KEY: PAIR}, tmp_path / "lora.st"))])


@pytest.mark.parametrize(("text", "given", "alpha"), [("16.0", None, 16.0), ("16", 3.0, 3.0)])
def test_an_alpha_in_the_metadata_counts_unless_one_is_given(
    text: str, given: float | None, alpha: float, path: Path, tmp_path: Path
) -> None:
    file, pair = tmp_path / "lora.safetensors", {f"{KEY}.lora_A": PAIR[0], f"{KEY}.lora_B": PAIR[1]}
    save_file(pair, file, {"alpha": text})
    with open_model(path) as plain, open_model(path, [LoraChoice(file, given)]) as merged:
        change = merged.tensor(f"{KEY}.weight") - plain.tensor(f"{KEY}.weight").astype(np.float32)
    assert np.allclose(change, alpha / 4 * PAIR[1] @ PAIR[0], atol=1e-4)


@pytest.mark.parametrize("text", ["", "much", "nan", "-1"])
def test_an_alpha_in_the_metadata_that_is_no_number_above_0_is_refused(text: str, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "lora.safetensors"
    save_file({f"{KEY}.lora_A": PAIR[0], f"{KEY}.lora_B": PAIR[1]}, file, {"alpha": text})
    with pytest.raises(ModelError, match=r"lora.safetensors: .*alpha is .*; expected a number above 0"):
        open_model(path, [LoraChoice(file)])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"r": 5}, "a pair of rank 4; expected 5, as adapter_config.json says"),
        ({"r": 0}, "r is 0; expected a number above 0"),
        ({"lora_alpha": math.nan}, "lora_alpha is nan; expected a number above 0"),
        ({"lora_alpha": "16"}, "lora_alpha is 16; expected a number above 0"),
        ({"peft_type": "IA3"}, "peft_type IA3 can't be merged; expected LORA"),
        ({"use_dora": True}, "use_dora is true, and DoRA can't be merged; expected false"),
        ({"alpha_pattern": {"(a+)+b": 1}}, r"alpha_pattern has the module \(a\+\)\+b; expected only letters"),
        ({"rank_pattern": [1]}, "rank_pattern is a list; expected an object from modules to numbers"),
    ],
)
def test_a_config_of_peft_that_does_not_fit_is_refused(
    config: dict[str, object], message: str, path: Path, tmp_path: Path
) -> None:
    folder = save_peft({PEFT_KEY: PAIR}, tmp_path / "peft", {"r": 4, "lora_alpha": 16, **config})
    with pytest.raises(ModelError, match=f"peft/adapter_.*: .*{message}"):
        open_model(path, [LoraChoice(folder)])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json can't be read"),
        (lambda folder: (folder / "adapter_config.json").write_text("["), "adapter_config.json is not valid JSON"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "holds a list; expected an object"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has neither adapter_model.safetensors nor"),
    ],
)
def test_a_folder_that_is_not_pefts_is_refused(
    damage: Callable[[Path], object], message: str, path: Path, tmp_path: Path
) -> None:
    folder = save_peft({PEFT_KEY: PAIR}, tmp_path / "peft", {"r": 4, "lora_alpha": 16})
    damage(folder)
    with pytest.raises(ModelError, match=message):
        open_model(path, [LoraChoice(folder)])


def test_a_module_that_the_model_lacks_is_refused(path: Path, tmp_path: Path) -> None:
    folder = save_peft({"model.layers.0.attn.q_proj": PAIR}, tmp_path / "peft", {"r": 4, "lora_alpha": 16})
    with pytest.raises(ModelError, match="2 tensors that the model has no place for: base_model"):
        open_model(path, [LoraChoice(folder)])


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("a.st", LoraChoice(Path("a.st"))),
        ("a.st:32", LoraChoice(Path("a.st"), 32.0)),
        ("C:\\a.st", LoraChoice(Path("C:\\a.st"))),
        ("a:b:0.5", LoraChoice(Path("a:b"), 0.5)),
        ("32", LoraChoice(Path("32"))),
    ],
)
def test_choices_are_read(text: str, choice: LoraChoice) -> None:
    assert LoraChoice.parse(text) == choice


@pytest.mark.skipif(sys.platform == "win32", reason="file names have no colons there")
def test_a_path_that_ends_in_a_colon_and_a_number_is_a_path_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "a:8"
    assert LoraChoice.parse(str(file)) == LoraChoice(tmp_path / "a", 8.0)
    file.touch()
    assert LoraChoice.parse(str(file)) == LoraChoice(file)
    assert LoraChoice.parse(f"{file}:2") == LoraChoice(file, 2.0)


@pytest.mark.parametrize("text", ["a.st:nan", "a.st:inf", ":4"])
def test_a_choice_without_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected FILE or FILE:ALPHA"):
        LoraChoice.parse(text)
