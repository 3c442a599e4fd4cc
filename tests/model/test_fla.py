"""A model under flash-linear-attention's names is the same as under BlinkDL's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from rnn_engine.loading.runner import open_model
from rnn_engine.model.huggingface import blinkdl_name, fla_name, is_transposed
from rnn_engine.versions.v7.layout import AdapterRanks
from tests.support.models import random_model, save_safetensors, tiny_shape


def test_a_model_under_fla_names_is_the_same(tmp_path: Path) -> None:
    for ranks in (None, AdapterRanks(w=64, a=64, v=64, g=64)):
        model = random_model(tiny_shape(head_size=64, ranks=ranks), seed=1, layer0_v=False)
        stored = {
            fla_name(name): np.ascontiguousarray(values.T if is_transposed(name) else values)
            for name, values in model.tensors.items()
        }
        assert {"model.layers.1.attn.w_lora.lora.0.weight", "model.layers.0.pre_norm.bias", "lm_head.weight"} <= set(
            stored
        )
        assert stored["model.layers.1.attn.g_lora.lora.0.weight"].shape == model.tensor("blocks.1.att.g1").shape[::-1]
        assert [blinkdl_name(name) for name in stored] == list(model.names)
        save_file(stored, tmp_path / "fla.safetensors")
        plain = save_safetensors(model, tmp_path / "plain.safetensors", "f32")
        with open_model(tmp_path / "fla.safetensors") as opened, open_model(plain) as expected:
            assert opened.shape == expected.shape
            assert opened.fingerprint == expected.fingerprint
