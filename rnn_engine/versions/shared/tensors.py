"""The tensors that all versions have: the embedding and the head, the norms, and the projections.

D width, V vocabulary, H heads, N head size, F ffn width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rnn_engine.model.layout import TensorSpec


def list_model(layers: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the tensors of all layers, with those before and after them."""
    return (
        TensorSpec("emb.weight", ("V", "D")),
        *list_norm("blocks.0.ln0"),
        *layers,
        *list_norm("ln_out"),
        TensorSpec("head.weight", ("V", "D")),
    )


def list_norm(name: str) -> Iterator[TensorSpec]:
    """Yield the weight and the bias of a layer norm or a group norm."""
    yield TensorSpec(f"{name}.weight", ("D",))
    yield TensorSpec(f"{name}.bias", ("D",))


def list_projections(block: str, *names: str) -> Iterator[TensorSpec]:
    """Yield the square matrices of a time mix."""
    for name in names:
        yield TensorSpec(f"{block}.att.{name}.weight", ("D", "D"))


def list_static_mixes(part: str, kinds: str) -> Iterator[TensorSpec]:
    """Yield the mixes of RWKV-4 and RWKV-5, one for each letter."""
    for kind in kinds:
        yield TensorSpec(f"{part}.time_mix_{kind}", ("D",))


def tuned_state(block: str) -> TensorSpec:
    """Return the tensor of a tuned wkv [H, value, key], which a file need not have."""
    return TensorSpec(f"{block}.att.time_state", ("H", "N", "N"), required=False, ai00_swaps=True)


def list_channel_mix(block: str) -> Iterator[TensorSpec]:
    """Yield the matrices of a channel mix with a receptance."""
    yield TensorSpec(f"{block}.ffn.key.weight", ("F", "D"))
    yield TensorSpec(f"{block}.ffn.receptance.weight", ("D", "D"))
    yield TensorSpec(f"{block}.ffn.value.weight", ("D", "F"))
