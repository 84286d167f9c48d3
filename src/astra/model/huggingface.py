"""A Hugging Face config.json as a Model: any decoder family, known or llama-like.

What differs by family is data (data/huggingface.toml). What cannot be planned is refused with
the reason; what had to be assumed is said.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from astra.errors import InputError, shorten
from astra.files import convert, read_json
from astra.model.check import MAX_LAYERS, check_shape
from astra.model.config_fields import Config, ConfigFamily, FamilyOptions, family, json_word, table
from astra.model.config_layers import experts, window
from astra.model.config_special import SPECIAL
from astra.model.parameters import parameters
from astra.model.shape import Model

DECODER_PARTS = ("text_config", "llm_config", "language_config", "language_model_config")
NAMELESS = "model"  # what a model is called of which nothing is known but its size
NO_TYPE = "(none given)"
COUNTS = ("learned_positions", "embedding_dim")  # in `read`, numbers; all else is true or false


def read_config(path: Path) -> Model:
    """The model of a config.json; a file of another name gives the model that name."""
    name = "" if path.name == "config.json" else path.stem
    folder = path.parent.resolve().name
    return model_from_config(read_json(path), str(path), name, folder or NAMELESS)


def model_from_config(raw: object, where: str, name: str = "", otherwise: str = NAMELESS) -> Model:
    """A config as `json.load` gives it, as a checked model.

    Its name is the one given, what the config remembers of the hub, its family with its size, or
    what it is called otherwise.
    """
    if not isinstance(raw, Mapping):
        raise InputError(f"{where}: a config is a JSON object, this is {_article(raw)}.")
    refuse_adapter(raw, where)
    config, said = open_config(raw, where)
    fields = read_fields(config)
    fields["name"] = name or otherwise
    fields["family"] = config.model_type
    fields["hf_id"] = _hub_id(raw)
    if config.taken:
        defaults = ", ".join(f"{key} = {json_word(value)}" for key, value in config.taken.items())
        whose = f"{config.model_type}'s" if config.model_type in table().families else "the usual"
        said.append(f"left out of the config, so {whose} defaults are taken: {defaults}")
    fields["assumed"] = said
    fields["source"] = {"kind": "user", "where": where}
    model = check_shape(convert(fields, Model, where), where, config.used)
    return model if name else _named(model, otherwise)


def _named(model: Model, otherwise: str) -> Model:
    """`Meta-Llama-3-8B` of its id on the hub, or `llama-8030m` of family and size."""
    if model.hf_id is not None:
        found = model.hf_id.rpartition("/")[2]
    elif model.family not in (None, NO_TYPE) or otherwise == NAMELESS:
        kind = NAMELESS if model.family in (None, NO_TYPE) else model.family
        found = f"{kind}-{size_name(model)}"
    else:
        found = otherwise
    return msgspec.structs.replace(model, name=found)


def size_name(model: Model) -> str:
    return _size(parameters(model).total)


def _size(count: int) -> str:
    """Whole numbers, so that no name reads as a release: llama-3.21b is not of Llama 3.2.

    >>> _size(70_553_706_496), _size(3_212_749_824), _size(124_439_808), _size(1_500)
    ('71b', '3213m', '124m', '2k')
    """
    for unit, letter in ((1e9, "b"), (1e6, "m")):
        if count >= 9.5 * unit:
            return f"{count / unit:.0f}{letter}"
    return f"{count / 1e3:.0f}k"


def open_config(raw: Mapping[str, Any], where: str) -> tuple[Config, list[str]]:
    """The decoder's part of the file with its family, and what had to be assumed so far."""
    said: list[str] = []
    part, prefix = raw, ""
    for key in DECODER_PARTS:
        if isinstance(raw.get(key), Mapping) and raw[key]:
            part, prefix = raw[key], f"{key}."
            said.append(f"only the text decoder ({key}) is planned; other encoders are left out")
            break
    model_type = _model_type(part, raw, where, prefix)
    refuse_type(model_type, where, prefix)
    known = model_type in table().families and model_type not in ("unknown", "plain")
    kind = family(model_type if known else "unknown")
    if kind.say is not None:
        said.append(kind.say)
    if not known:
        said.append(f"model_type {shorten(model_type)} is not known here: read as llama would be")
        refuse_telltales(part, where, prefix)
    if part.get("is_encoder_decoder") is True:
        raise InputError(
            f"{where}: {prefix}is_encoder_decoder = true: only decoder-only models are planned."
        )
    if prefix:
        kind = _for_nested(kind)
        part = _tied_as_whole(part, raw, said)
    options = convert(kind.options, FamilyOptions, "huggingface.toml")
    config = Config(part, where, model_type, prefix, kind, options)
    return config, said


def read_fields(config: Config) -> dict[str, Any]:
    """All fields of our Model that the config and its family give."""
    layers, hidden, heads = config.count("layers"), config.count("hidden"), config.count("heads")
    if layers > MAX_LAYERS:  # before anything is listed layer by layer
        raise config.error(config.used["layers"], f"is more than {MAX_LAYERS:,} layers.")
    ffn = _ffn(config, hidden)
    fields: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.maybe_count("kv_heads") or heads,
        "vocab": config.count("vocab"),
        "max_positions": config.maybe_count("max_positions"),
        "tied_embeddings": config.flag("tie_word_embeddings"),
        "rope_theta": config.number("rope_theta"),
        "mtp_layers": config.maybe_count("mtp_layers", least=0) or 0,
        "moe": experts(config, layers, ffn),
        "mla": latent_attention(config, hidden // heads),
        "window": window(config, layers),
    }
    activation = config.word("activation")
    if activation is not None:
        fields["activation"] = table().activations.get(activation, activation)
    fields |= config.family.traits
    for ours, theirs in config.family.read.items():
        fields[ours] = config.whole(theirs) if ours in COUNTS else config.flag(theirs)
    if fields.get("learned_positions"):
        fields["learned_positions"] += config.options.positions_offset
    fields["ffn"] = ffn
    fields |= _positions(config)
    if config.family.special is not None:
        SPECIAL[config.family.special](config, fields)
    _complete_fields(config, fields)
    return fields


def _positions(config: Config) -> dict[str, str]:
    """Where a config of any family says that positions are neither rotary nor learned."""
    if True in (config.given("alibi"), config.given("attn_config.alibi")):
        return {"positions": "alibi"}
    kind = {"alibi": "alibi", "nope": "none"}.get(str(config.given("position_embedding_type")))
    return {"positions": kind} if kind else {}


def _complete_fields(config: Config, fields: dict[str, Any]) -> None:
    """What follows from the rest: the size of a head, and that there is an MLP at all."""
    mla, hidden, heads = fields["mla"], fields["hidden"], fields["heads"]
    if mla is not None:
        fields["kv_heads"] = heads
        fields["head_dim"] = mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]
    else:
        fields["head_dim"] = config.maybe_count("head_dim")
    if fields["head_dim"] is None:
        if hidden % heads:
            raise InputError(
                f"{config.where}: {config.prefix}{config.used['hidden']} = {hidden} is not "
                f"divisible by {config.used['heads']} = {heads}, and head_dim is not given. "
                "Add head_dim."
            )
        fields["head_dim"] = hidden // heads
    if fields["ffn"] is None:
        fields["ffn"] = 0 if fields["moe"] is not None else config.count("ffn")


def _ffn(config: Config, hidden: int) -> int | None:
    """Width of the dense MLP; None where the config does not say."""
    width = config.maybe_count("ffn")
    if width is None and config.options.ffn_times is not None:
        return config.options.ffn_times * hidden
    if width is not None and config.options.ffn_is_twice:
        return width // 2
    return width


def latent_attention(config: Config, head_dim: int) -> dict[str, int | None] | None:
    """The [mla] table; None where attention is of the common kind.

    Values are as wide as `head_dim` where neither the config nor the family says.
    """
    if config.maybe_count("mla.kv_lora_rank") is None:
        return None
    return {
        "q_lora_rank": config.maybe_count("mla.q_lora_rank"),
        "kv_lora_rank": config.count("mla.kv_lora_rank"),
        "qk_nope_head_dim": config.count("mla.qk_nope_head_dim"),
        "qk_rope_head_dim": config.count("mla.qk_rope_head_dim"),
        "v_head_dim": config.maybe_count("mla.v_head_dim") or head_dim,
    }


def refuse_adapter(raw: Mapping[str, Any], where: str) -> None:
    """A peft adapter is not a model; nor are adapters planned."""
    if "peft_type" in raw or ("base_model_name_or_path" in raw and "model_type" not in raw):
        base = raw.get("base_model_name_or_path")
        of = f" of {shorten(base)}" if isinstance(base, str) and base else ""
        raise InputError(
            f"{where}: this is an adapter{of} (LoRA or alike), and only full training is planned. "
            "Give the config.json of the base model."
        )


def refuse_type(model_type: str, where: str, prefix: str) -> None:
    """An InputError with the reason, for families that cannot be planned."""
    for refusal in table().refused:
        if model_type in refusal.types:
            raise InputError(
                f"{where}: {prefix}model_type = {model_type!r} cannot be planned: {refusal.why}."
            )


def refuse_telltales(part: Mapping[str, Any], where: str, prefix: str) -> None:
    """Fields that only models with unmodelled layers have."""
    for what, names in table().telltale.items():
        for name in names:
            if part.get(name) not in (None, False, 0, [], {}, ""):
                raise InputError(
                    f"{where}: {prefix}{name} = {shorten(part[name])} speaks of {what}, which are "
                    "not modelled. If it means nothing here, delete the field."
                )


def _model_type(part: Mapping[str, Any], raw: Mapping[str, Any], where: str, prefix: str) -> str:
    """The name of the family; a text part without one is known by the whole's."""
    for source, path in ((part, prefix), (raw, "")):
        value = source.get("model_type")
        if value is not None and not isinstance(value, str):
            raise InputError(
                f"{where}: {path}model_type = {shorten(value)}: a name in quotes is needed."
            )
        if value:
            return value
    return NO_TYPE


def _for_nested(kind: ConfigFamily) -> ConfigFamily:
    """Configs inside a config omit sizes too, where they equal the class's."""
    return msgspec.structs.replace(kind, defaults=kind.defaults | kind.nested)


def _tied_as_whole(
    part: Mapping[str, Any], raw: Mapping[str, Any], said: list[str]
) -> Mapping[str, Any]:
    """Whether the head is tied is the whole model's to say, where it says it."""
    tied = raw.get("tie_word_embeddings")
    if not isinstance(tied, bool):
        return part
    if part.get("tie_word_embeddings") is (not tied):
        said.append(
            f"tie_word_embeddings = {json_word(tied)} of the whole rules over the text part's"
        )
    return {**part, "tie_word_embeddings": tied}


def _hub_id(raw: Mapping[str, Any]) -> str | None:
    """`owner/name`, where the config remembers it."""
    value = raw.get("_name_or_path")
    plain = isinstance(value, str) and value.count("/") == 1 and not value.startswith(("/", "."))
    return value if plain else None


def _article(raw: object) -> str:
    names = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}
    return names.get(type(raw), "a number")
