"""A stack: the software that runs a plan, as a few factors with their source.

A framework is not alike on every GPU, in every number format and in every release. Its file has
the factors of the framework, and settings that multiply them where they apply; `Stack.on` is the
one place where they are looked up. `nemo@24.07` names a release; one that was not measured runs
as the framework on the whole.
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from astra.errors import InputError, did_you_mean
from astra.files import Source, convert, parse_toml, read_text
from astra.hardware.cluster import Gpu
from astra.notes import Note, NoteCode, note
from astra.values import of_kind

FOLDER = Path(__file__).parent.parent / "data" / "stacks"

# What a setting may multiply; the last five are traffic.
KERNEL_FACTORS = ("compute", "product", "attention", "elementwise", "experts")
TRAFFIC_FACTORS = ("communication", "tensor", "context", "dispatch", "data", "pipeline")
FACTOR_NAMES = (*KERNEL_FACTORS, *TRAFFIC_FACTORS, "host", "optimizer")


class StackFactors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds in a step over those of kernels and collectives alone."""

    compute_factor: float = 1.0  # kernels in a step over kernels alone
    product_factor: float = 1.0  # on top of it: matrix products
    attention_factor: float = 1.0
    elementwise_factor: float = 1.0
    experts_factor: float = 1.0  # grouped products, and what routes tokens to them
    communication_factor: float = 1.0  # all traffic
    tensor_factor: float = 1.0  # on top of it, each kind of traffic
    context_factor: float = 1.0
    dispatch_factor: float = 1.0  # tokens to their experts and back
    data_factor: float = 1.0  # gradients and parameters between copies
    pipeline_factor: float = 1.0
    host_factor: float = 1.0  # of the CPU's seconds
    optimizer_factor: float = 1.0


class StackSetting(StackFactors, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a stack runs otherwise: its factors are multiplied if all that is named holds."""

    gpu: str | None = None
    architecture: str | None = None
    precision: str | None = None  # or the recipe of fp8
    release: str | None = None
    runs: int  # that it was fitted on

    def holds(self, gpu: Gpu, form: str | None, release: str | None) -> bool:
        wanted = (
            (self.gpu, (gpu.name,)),
            (self.architecture, (gpu.architecture,)),
            (self.precision, (form,)),
            (self.release, (release,)),
        )
        return all(word is None or word in found for word, found in wanted)

    def description(self) -> str:
        """Where it applies, in words."""
        where = (self.gpu, self.architecture, self.precision)
        words = [word for word in where if word] + ([f"@{self.release}"] if self.release else [])
        return ", ".join(words)

    def factors(self) -> dict[str, float]:
        """What it changes."""
        found = {name: float(getattr(self, f"{name}_factor")) for name in FACTOR_NAMES}
        return {name: value for name, value in found.items() if value != 1.0}


class Stack(StackFactors, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a framework adds to kernels measured alone."""

    name: str
    like: str | None = None  # the stack whose times it has; what its file says is different
    release: str | None = None
    host_forward_s: float = 0.0  # CPU seconds of one layer; kernels wait if they are shorter
    host_backward_s: float = 0.0
    host_experts_s: float = 0.0  # more for routing and dispatch, in either pass
    host_expert_kernel_s: float = 0.0  # and for each kernel of an expert of its own
    step_s: float = 0.0  # once per step
    # Busy seconds lost to the slowest rank for every doubling of the job's GPUs: what the steps
    # of one model grow by from cluster to cluster, beyond their traffic.
    jitter_fraction: float = 0.0
    activation_factor: float = 1.0  # kept activations over those counted tensor by tensor
    logits_bytes: float = 6.0  # per logit at the loss: 2 for itself, 4 for its fp32 copy
    dropout: bool = False  # masks of hidden dropout are kept: one byte, twice a layer
    transformer_engine: bool = False  # layers are its: it has workspaces and attention of its own
    tensor_waits: bool = False  # backward, too, every tensor-parallel sum is waited for
    holds_sends: bool = False  # a send between stages that no buffer takes holds up both
    # Tensors of a layer, if each belongs to one rank of a shard group as a whole: gradients go to
    # their owners and parameters come from them, a collective each, in the order of ranks and not
    # of layers, so that no forward pass begins before the last has come. 0: cut evenly, as one.
    owned_tensors: int = 0
    # Moved per score by attention that keeps all of them, as in bf16, beside its products.
    unfused_forward_bytes: float = 11.0
    unfused_backward_bytes: float = 15.0
    tied_bytes: float = 0.0  # of an element of tied embeddings' gradients as sent; 0: as reduced
    deterministic: bool = False  # only kernels that repeat their sums in one order
    # How layers are written: Megatron-LM's, whose products and kernels are fused; Hugging Face's
    # under torch.compile; or the same one kernel after the other.
    layers: Literal["fused", "compiled", "eager"] = "fused"
    # Layers as Hugging Face writes them move more than Megatron-LM's, in bytes: for an element of a
    # routed token (both passes together), for the gradient of a parameter, of one of an expert.
    routing_bytes: float = 0.0
    weight_gradient_bytes: float = 0.0
    expert_gradient_bytes: float = 0.0
    routed_copies: float = 0.0  # and they keep more: what experts return,
    query_copies: float = 0.0  # queries (and keys) before they are turned
    gradient_bytes: float = 0.0  # of a parameter: gradients beside the ones that are reduced
    gradient_shard_bytes: float = 0.0  # of a parameter: the optimizer's own gradients, sharded
    bucket_bytes: float = 0.0  # flat buffers that a sharded optimizer's traffic goes through
    slack_fraction: float = 0.04  # reserved over allocated memory
    spread_fraction: float = 0.15  # 80 % of measured steps lie within this of the prediction
    moe_spread_fraction: float = 0.3  # the same for models with experts
    runs: int = 0  # that its factors were fitted on
    pinned: tuple[str, ...] = ()  # factors that its layers timed alone tell: no fit moves them
    settings: tuple[StackSetting, ...] = ()
    source: Source

    def on(self, gpu: Gpu, precision: str | None = None, recipe: str | None = None) -> "Stack":
        """The factors that hold on this GPU; traffic and the CPU know of no number format.

        A recipe of fp8 is a format of its own, as in the fit.
        """
        return _resolved(self, gpu, recipe or precision)

    def applied(self, gpu: Gpu, form: str | None) -> tuple[StackSetting, ...]:
        """The settings that hold on a GPU in a number format, or a recipe of it."""
        return tuple(row for row in self.settings if row.holds(gpu, form, self.release))

    @property
    def releases(self) -> tuple[str, ...]:
        """Those that it tells apart."""
        return tuple(sorted({row.release for row in self.settings if row.release}))

    @property
    def timed_as(self) -> str:
        """The stack that its times were fitted as."""
        return self.like or self.name

    @property
    def full_name(self) -> str:
        return f"{self.name}@{self.release}" if self.release else self.name


@lru_cache(maxsize=4096)
def _resolved(stack: Stack, gpu: Gpu, form: str | None) -> Stack:
    found = stack.applied(gpu, form)
    if not found:
        return stack
    fields = {}
    for name in (f"{name}_factor" for name in FACTOR_NAMES):
        value = getattr(stack, name)
        for row in found:
            value *= getattr(row, name)
        fields[name] = value
    return msgspec.structs.replace(stack, settings=(), **fields)


def release_note(stack: Stack) -> Note | None:
    """Says so where nobody measured the release that was asked for."""
    if stack.release is None or stack.release in stack.releases:
        return None
    return note(
        NoteCode.UNKNOWN_RELEASE,
        stack=stack.name,
        release=stack.release,
        known=sorted(stack.releases),
    )


def user_stack_folder() -> Path:
    """Where the stacks are kept that a user has calibrated."""
    return Path.home() / ".config" / "astra" / "stacks"


def shipped_stacks() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def stack_names() -> tuple[str, ...]:
    """Those that are shipped, and those of one's own."""
    own = {path.stem for path in user_stack_folder().glob("*.toml")}
    return tuple(sorted({*shipped_stacks(), *own}))


def find_stack(name: str) -> Stack:
    """A stack by its name, `nemo` or with a release, `nemo@24.07`."""
    plain, _, release = of_kind(name, "stack", str, "a name").partition("@")
    path = FOLDER / f"{plain}.toml"
    if plain not in shipped_stacks():
        path = user_stack_folder() / f"{plain}.toml"
        if plain not in stack_names():
            hint = did_you_mean(plain, stack_names(), f"The stacks are {', '.join(stack_names())}.")
            raise InputError(f"unknown stack {plain!r}. {hint}")
    return msgspec.structs.replace(_read(path, path.stat().st_mtime_ns), release=release or None)


@cache
def _read(path: Path, changed: int) -> Stack:
    """The stack of a file as it was then; read once."""
    del changed
    where = f"stacks/{path.name}" if path.parent == FOLDER else str(path)
    raw = {"name": path.stem, **parse_toml(read_text(path), where)}
    if isinstance(raw.get("like"), str) and raw["like"] != path.stem:
        raw = msgspec.to_builtins(find_stack(raw["like"])) | raw
    stack = convert(raw, Stack, where)
    for row in stack.settings:
        odd = [word for word in row.factors() if row.precision and word not in KERNEL_FACTORS]
        if odd:
            raise InputError(f"{where}: {', '.join(odd)} cannot depend on a number format.")
    return stack
