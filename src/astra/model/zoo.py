"""Finding a model: by its name in the zoo, by a Hugging Face config, by a small TOML."""

import os
import re
from functools import cache
from pathlib import Path

from astra.errors import InputError, did_you_mean, shorten
from astra.files import parse_toml
from astra.model.handwritten import model_from_table, read_model_toml
from astra.model.shape import Model

FOLDER = Path(__file__).parent.parent / "data" / "models"


@cache
def zoo_names() -> tuple[str, ...]:
    """The names of all models that come with Astra; numbers in them sort as numbers."""
    return tuple(sorted((path.stem for path in FOLDER.glob("*.toml")), key=_natural))


def _natural(name: str) -> list[tuple[int, float, str]]:
    """llama-2-7b before llama-2-13b."""
    words = re.findall(r"[0-9]+(?:[.][0-9]+)?|[^0-9]+", name)
    return [(0, float(word), "") if word[0].isdigit() else (1, 0.0, word) for word in words]


@cache
def zoo_model(name: str) -> Model:
    """One model of the zoo, by its exact name. Only its own file is read."""
    where = f"zoo/{name}.toml"
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    return model_from_table(parse_toml(text, where), where, name)


def matching_names(text: str) -> tuple[str, ...]:
    """The zoo's models with this text in name, family or Hugging Face id."""
    wanted = normalized_name(text)
    if not wanted:
        return zoo_names()
    return tuple(
        name
        for name in zoo_names()
        if any(
            wanted in normalized_name(word)
            for word in (name, zoo_model(name).family, zoo_model(name).hf_id)
            if word
        )
    )


def find_model(text: str | Path) -> Model:
    """The model meant by a zoo name, a Hugging Face id, a config.json, a folder or a TOML.

    >>> import astra
    >>> astra.find_model("llama-3-8b")
    Model(llama-3-8b: 32 layers, hidden 4096)
    """
    text = str(text).strip()
    if not text:
        raise InputError(
            "no model given. Name one (`astra models` lists them), or a config.json or TOML file."
        )
    exact = _by_name(text)
    if exact is not None and not Path(text).is_file():
        return exact
    if _is_path(text):
        return read_model(Path(text))
    return _by_hugging_face_id(text) or _unknown(text)


def known_model(text: str) -> Model:
    """The model of a zoo name or a Hugging Face id; never a file, whatever is called so."""
    return _by_name(text) or _by_hugging_face_id(text) or _unknown(text)


def _by_name(text: str) -> Model | None:
    exact = {normalized_name(name): name for name in zoo_names()}.get(normalized_name(text))
    return None if exact is None else zoo_model(exact)


def read_model(path: Path) -> Model:
    """The model a file describes; a folder stands for the config.json in it."""
    from astra.model.huggingface import read_config  # most commands name a model of the zoo

    if path.is_dir():
        config = path / "config.json"
        if config.is_file():
            return read_config(config)
        if (path / "adapter_config.json").is_file():
            return read_config(path / "adapter_config.json")
        raise InputError(f"{path}: this folder holds no config.json.")
    if path.suffix.lower() == ".toml":
        return read_model_toml(path)
    if path.suffix.lower() == ".json":
        return read_config(path)
    if not path.exists():
        raise InputError(f"{path}: no such file. {_hint(path.name)}".rstrip())
    raise InputError(f"{path}: a model is a .json (Hugging Face config) or a .toml file.")


def normalized_name(name: str) -> str:
    """A name without case, and with one sign for `-`, `_` and blanks."""
    return "-".join(name.lower().replace("_", "-").split())


def _is_path(text: str) -> bool:
    """Whether this can only be a file: it exists, looks like a path, or ends like one."""
    if "\0" in text or len(text) > 4000:
        raise InputError(f"{shorten(text)}: neither a model's name nor a path.")
    try:
        if Path(text).exists():
            return True
    except OSError as error:
        raise InputError(f"{shorten(text)}: cannot be read: {error.strerror}.") from None
    starts = text.startswith((".", "~", os.sep))
    return starts or Path(text).suffix.lower() in (".json", ".toml") or text.count("/") > 1


def _by_hugging_face_id(text: str) -> Model | None:
    """`meta-llama/Meta-Llama-3-70B`: the zoo's model of that id. Reads the zoo until found."""
    if text.count("/") != 1:
        return None
    wanted = normalized_name(text)
    for name in zoo_names():
        model = zoo_model(name)
        if model.hf_id is not None and normalized_name(model.hf_id) == wanted:
            return model
    return None


def _unknown(text: str) -> Model:
    listing = "`astra models` lists the names; a config.json or a small TOML works too."
    if text.count("/") == 1:
        hint = _hint(text.split("/")[1])
        raise InputError(
            f"{shorten(text)}: not among the models that come with Astra, and nothing is fetched "
            f"from the network. Download its config.json and give that path. {hint}".rstrip()
        )
    raise InputError(f"unknown model {shorten(text)}. {_hint(text) or listing}")


def _hint(name: str) -> str:
    return did_you_mean(normalized_name(name), zoo_names())
