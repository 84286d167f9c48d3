"""Shapes that contradict themselves, found before anything is computed from them."""

from collections.abc import Mapping
from dataclasses import dataclass

from astra.errors import InputError, shorten
from astra.model.layer_kinds import has_experts
from astra.model.parameters import parameters
from astra.model.shape import Model

MAX_LAYERS = 10_000
MAX_PARAMETERS = 10**16  # four orders of magnitude above anything trained


@dataclass(frozen=True, slots=True)
class ShapeCheck:
    """A model under inspection, and what its file calls the fields."""

    model: Model
    where: str
    names: Mapping[str, str]

    def name(self, field: str) -> str:
        return self.names.get(field, field)

    def error(self, field: str, why: str) -> InputError:
        value: object = self.model
        for step in field.split("."):
            value = getattr(value, step)
        return InputError(f"{self.where}: {self.name(field)} = {shorten(value)} {why}")


def check_shape(model: Model, where: str, names: Mapping[str, str] | None = None) -> Model:
    """The model itself, or an InputError saying which fields contradict each other.

    `names` says what the user's file calls our fields, where that differs.
    """
    checked = ShapeCheck(model, where, names or {})
    _check_heads(checked)
    _check_layer_lists(checked)
    _check_experts(checked)
    _check_counts(model, where)
    return model


def _check_heads(checked: ShapeCheck) -> None:
    model, heads = checked.model, checked.name("heads")
    if model.layers > MAX_LAYERS:
        raise checked.error("layers", f"is more than {MAX_LAYERS:,}. Is this the right field?")
    if model.kv_heads > model.heads:
        raise checked.error(
            "kv_heads", f"is more than {heads} = {model.heads}. Try {model.heads} or fewer."
        )
    if model.heads % model.kv_heads:
        fits = [n for n in range(1, min(model.heads, 4096) + 1) if model.heads % n == 0]
        shown = ", ".join(str(n) for n in fits[:12])
        raise checked.error(
            "kv_heads", f"does not divide {heads} = {model.heads}. Try one of {shown}."
        )


def _check_experts(checked: ShapeCheck) -> None:
    model, moe = checked.model, checked.model.moe
    if moe is None:
        if model.ffn == 0:
            raise checked.error("ffn", "but there are no experts either: give the MLP's width.")
        return
    experts, layers = checked.name("moe.experts"), checked.name("layers")
    if moe.top_k > moe.experts:
        raise checked.error(
            "moe.top_k", f"is more than {experts} = {moe.experts}. Try {moe.experts} or fewer."
        )
    if moe.first_dense_layers > model.layers:
        raise checked.error(
            "moe.first_dense_layers",
            f"is more than {layers} = {model.layers}. Try {model.layers} or fewer.",
        )
    if moe.shared_experts and not moe.shared_ffn:
        raise checked.error("moe.shared_experts", "but shared_ffn, their total width, is missing.")
    dense = sum(not has_experts(model, layer) for layer in range(model.layers))
    if dense and not model.ffn:
        raise checked.error("ffn", f"but {dense} of {model.layers} layers have no experts.")


def _check_layer_lists(checked: ShapeCheck) -> None:
    model = checked.model
    lists = {
        "moe.layers": model.moe.layers if model.moe else None,
        "window.layers": model.window.layers if model.window else None,
    }
    for field, layers in lists.items():
        beyond = [layer for layer in layers or () if layer >= model.layers]
        if beyond:
            raise checked.error(
                field, f"names layer {beyond[0]}, but there are {model.layers}, counted from 0."
            )


def _check_counts(model: Model, where: str) -> None:
    """A recorded count that differs from the shape's means that one of the two is wrong."""
    counted = parameters(model)
    if counted.total > MAX_PARAMETERS:
        raise InputError(
            f"{where}: the shape has {counted.total:,} parameters. Is a field too large by mistake?"
        )
    for field, ours in (("parameters", counted.total), ("active_parameters", counted.active)):
        recorded: int | None = getattr(model, field)
        if recorded is not None and recorded != ours:
            raise InputError(
                f"{where}: {field} = {recorded:,} disagrees with the shape, which gives {ours:,} "
                f"({ours - recorded:+,}). Correct the shape, or leave {field} out."
            )
