"""One thing to measure: an operator, its variant, a number format and a shape."""

from dataclasses import dataclass, field

from astra.errors import InputError, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What is timed. `wave` says when: 0 is the broad coarse grid, later ones refine it."""

    op: str
    variant: str  # kernel, direction and how it runs, joined by dots
    dtype: str
    shape: tuple[tuple[str, int], ...]
    wave: int = field(default=0, compare=False)

    @property
    def key(self) -> str:
        """The name in the file; equal keys are the same measurement.

        >>> Measurement(op="gemm", variant="dgrad", dtype="bf16", shape=(("m", 8), ("n", 4))).key
        'gemm/dgrad/bf16/m=8,n=4'
        """
        sides = ",".join(f"{name}={value}" for name, value in self.shape)
        return f"{self.op}/{self.variant}/{self.dtype}/{sides}"

    def __getitem__(self, name: str) -> int:
        for known, value in self.shape:
            if known == name:
                return value
        raise KeyError(name)

    @property
    def words(self) -> tuple[str, ...]:
        """The parts of the variant."""
        return tuple(self.variant.split("."))

    @property
    def how(self) -> str:
        """`eager` or `compiled`."""
        return "compiled" if self.words[-1] == "compiled" else "eager"


def measurement(op: str, variant: str, dtype: str, wave: int = 0, **shape: int) -> Measurement:
    return Measurement(op=op, variant=variant, dtype=dtype, shape=tuple(shape.items()), wave=wave)


def parse_key(key: str) -> Measurement:
    """The measurement that a key names."""
    parts = key.split("/")
    sides = [side.partition("=") for side in parts[3].split(",")] if len(parts) == 4 else []
    if not sides or not all(parts) or not all(value.isdigit() for _, _, value in sides):
        raise InputError(
            f"{shorten(key)} is not the key of a measurement. "
            "One looks like gemm/forward/bf16/m=4096,n=4096,k=4096."
        )
    shape = tuple((name, int(value)) for name, _, value in sides)
    return Measurement(op=parts[0], variant=parts[1], dtype=parts[2], shape=shape)
