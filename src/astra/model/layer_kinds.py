"""Layers come in kinds: what one decoder layer consists of, and which layer is of which kind."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from astra.model.shape import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What one decoder layer consists of. Two layers of one kind cost the same."""

    attention: Literal["mha", "gqa", "mqa", "mla"]
    window: int | None = None  # positions a token sees at most; None: all before it
    chunked: bool = False  # the window is a chunk of the sequence, not a sliding one
    mlp: Literal["dense", "moe"] = "dense"

    @property
    def name(self) -> str:
        """For people: `gqa, window 4096, moe`."""
        if self.window is None:
            return f"{self.attention}, {self.mlp}"
        word = "chunk" if self.chunked else "window"
        return f"{self.attention}, {word} {self.window}, {self.mlp}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKinds:
    """The distinct kinds of a model's layers, in order of first appearance."""

    kinds: tuple[LayerKind, ...]
    of_layer: tuple[int, ...]  # for every layer, its row in `kinds`
    mtp_layers: int = 0  # multi-token-prediction layers: each holds one layer of the last kind

    @property
    def counts(self) -> tuple[int, ...]:
        """Layers of each kind, multi-token-prediction layers left out."""
        return tuple(self.of_layer.count(row) for row in range(len(self.kinds)))

    @property
    def mtp_kind(self) -> LayerKind:
        """The kind of the decoder layer inside a multi-token-prediction layer."""
        return self.kinds[self.of_layer[-1]]


def attention_name(model: Model) -> Literal["mha", "gqa", "mqa", "mla"]:
    """Multi-head, grouped-query, multi-query or latent attention."""
    if model.mla is not None:
        return "mla"
    if model.kv_heads == model.heads:
        return "mha"
    return "mqa" if model.kv_heads == 1 else "gqa"


def has_experts(model: Model, layer: int) -> bool:
    """Whether this layer routes its tokens to experts."""
    moe = model.moe
    if moe is None:
        return False
    if moe.layers is not None:
        return layer in moe.layers
    return layer >= moe.first_dense_layers and (layer + 1) % moe.moe_layer_step == 0


def is_windowed(model: Model, layer: int) -> bool:
    """Whether attention in this layer is limited to the model's window."""
    if model.window is None:
        return False
    return model.window.layers is None or layer in model.window.layers


def layer_kind(model: Model, layer: int) -> LayerKind:
    """What this layer consists of."""
    windowed = is_windowed(model, layer)
    return LayerKind(
        attention=attention_name(model),
        window=model.window.tokens if model.window and windowed else None,
        chunked=bool(model.window and windowed and model.window.chunked),
        mlp="moe" if has_experts(model, layer) else "dense",
    )


@lru_cache(maxsize=64)
def layer_kinds(model: Model) -> LayerKinds:
    """The distinct kinds, and for every layer its kind."""
    every = [layer_kind(model, layer) for layer in range(model.layers)]
    kinds = tuple(dict.fromkeys(every))
    rows = {kind: row for row, kind in enumerate(kinds)}
    return LayerKinds(
        kinds=kinds,
        of_layer=tuple(rows[kind] for kind in every),
        mtp_layers=model.mtp_layers,
    )
