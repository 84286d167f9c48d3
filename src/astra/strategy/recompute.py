"""Activation recompute as people write it: `none`, `selective:mlp+layernorm`, `full:block:4`."""

from dataclasses import dataclass

from astra.errors import InputError, did_you_mean, shorten

MODES = ("none", "selective", "full:uniform", "full:block")

# Modules that selective recompute can drop, as Megatron-LM names them (`--recompute-modules`).
MODULES = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts")


@dataclass(frozen=True, slots=True)
class Recompute:
    """Which activations are dropped in the forward pass and computed again in the backward."""

    mode: str = "none"  # one of MODES
    layers: int = 0  # full: layers per group (uniform) or recomputed layers per chunk (block)
    modules: tuple[str, ...] = ()  # selective: in the order of MODULES

    def __str__(self) -> str:
        if self.mode == "selective":
            plain = self.modules == ("core_attn",)
            return "selective" if plain else f"selective:{'+'.join(self.modules)}"
        return self.mode if self.mode == "none" else f"{self.mode}:{self.layers}"

    @property
    def module_bits(self) -> int:
        return sum(1 << MODULES.index(module) for module in self.modules)

    @classmethod
    def of_codes(cls, mode: int, layers: int, bits: int) -> "Recompute":
        """From the three columns of a table."""
        modules = tuple(module for place, module in enumerate(MODULES) if bits >> place & 1)
        return cls(MODES[mode], layers, modules)

    @classmethod
    def parse(cls, text: str, where: str = "recompute") -> "Recompute":
        """`none`, `selective[:MODULE+MODULE]`, `full[:uniform|block:N]` (plain `full`: uniform:1).

        >>> str(Recompute.parse("selective:mlp+core_attn")), str(Recompute.parse("full"))
        ('selective:core_attn+mlp', 'full:uniform:1')
        """
        head, _, rest = text.partition(":")
        if head == "none" and not rest:
            return cls()
        if head == "selective":
            return cls("selective", 0, _modules(rest, text, where))
        if head == "full":
            method, _, count = (rest or "uniform:1").partition(":")
            if method in ("uniform", "block"):
                return cls(f"full:{method}", _count(count or "1", text, where))
        raise InputError(
            f"{where} = {shorten(text)}: not a recompute setting. "
            "Use none, selective, selective:MODULE+MODULE, full, full:uniform:N or full:block:N."
        )


def _modules(rest: str, text: str, where: str) -> tuple[str, ...]:
    wanted = rest.split("+") if rest else ["core_attn"]
    for module in wanted:
        if module not in MODULES:
            hint = did_you_mean(module, MODULES, f"The modules are {', '.join(MODULES)}.")
            raise InputError(f"{where} = {shorten(text)}: no module {shorten(module)}. {hint}")
    return tuple(module for module in MODULES if module in wanted)


def _count(count: str, text: str, where: str) -> int:
    if not (count.isascii() and count.isdigit() and int(count[:9]) >= 1 and len(count) <= 9):
        raise InputError(
            f"{where} = {shorten(text)}: {shorten(count)} is not a number of layers. "
            "Use a whole number of 1 or more, as in full:block:4."
        )
    return int(count)
