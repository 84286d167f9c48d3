"""The GPUs that are known, found by forgiving names. One file each in `data/gpus`."""

import re
from functools import cache
from pathlib import Path

from astra.errors import InputError, did_you_mean, shorten
from astra.files import convert, read_toml
from astra.hardware.cluster import Gpu
from astra.hardware.gpu_file import GPU_FILE_HINT, read_gpu
from astra.notes import Note, NoteCode, note
from astra.values import of_kind

FOLDER = Path(__file__).parent.parent / "data" / "gpus"
_MAKERS = re.compile(r"^(nvidia|amd|intel|habana|tesla|geforce|instinct|quadro)+")


@cache
def gpu_names() -> tuple[str, ...]:
    """Canonical names, sorted."""
    return tuple(sorted((path.stem for path in FOLDER.glob("*.toml")), key=str.lower))


def find_gpu(text: str) -> tuple[Gpu, Note | None]:
    """The GPU called `text`, and a note where the name had to be read as another.

    `text` is a canonical name, an alias, a driver's name, or the path of a TOML file. Case,
    spaces, `-`, `_`, the maker and `GB` for `G` do not matter.

    >>> import astra
    >>> astra.find_gpu("NVIDIA A100-SXM4-80GB")[0]
    Gpu(A100-80GB-SXM, 80 GB)
    """
    wanted = " ".join(of_kind(text, "gpu", str, "a name").split())
    if is_path(wanted):
        return read_gpu(Path(text.strip())), None
    key = normalized_name(wanted)
    name = _plain_names().get(key)
    if name:
        return _load(name), None
    name = aliases().get(key)
    if name:
        return _load(name), note(NoteCode.GPU_READ_AS, written=wanted, gpu=name)
    raise InputError(f"unknown GPU {shorten(wanted)}. {_advice(wanted)}")


def is_known(text: str) -> bool:
    """Whether the catalogue has a GPU of this name or alias."""
    key = normalized_name(text)
    return key in _plain_names() or key in aliases()


def is_path(text: str) -> bool:
    """Whether a GPU's name can only be meant as a file."""
    return "/" in text or "\\" in text or text.lower().endswith(".toml")


def normalized_name(name: str) -> str:
    """A name without what does not matter.

    >>> normalized_name("NVIDIA A100-SXM4-80GB") == normalized_name("a100 sxm4_80g")
    True
    """
    bare = _MAKERS.sub("", re.sub(r"[\s_-]+", "", name.lower()))
    return re.sub(r"(?<=[0-9])gb", "g", bare)


@cache
def aliases() -> dict[str, str]:
    """Every alias in its plain form, and the canonical name it stands for."""
    return {normalized_name(alias): name for name in gpu_names() for alias in _load(name).aliases}


def all_gpus() -> tuple[Gpu, ...]:
    """The whole catalogue, by name."""
    return tuple(_load(name) for name in gpu_names())


@cache
def _plain_names() -> dict[str, str]:
    return {normalized_name(name): name for name in gpu_names()}


@cache
def _load(name: str) -> Gpu:
    path = FOLDER / f"{name}.toml"
    return convert(read_toml(path), Gpu, path.name)


def _advice(wanted: str) -> str:
    """Near names, each GPU once, and the way out."""
    spoken = {name: name for name in gpu_names()}
    spoken |= {alias: gpu.name for gpu in all_gpus() for alias in gpu.aliases}
    hint = did_you_mean(wanted, spoken, f"`astra gpus` lists all {len(gpu_names())}.")
    return f"{hint} {GPU_FILE_HINT}"
