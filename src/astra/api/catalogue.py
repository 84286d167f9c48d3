"""What is known: models, GPUs and prices, as listings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from astra.api.listing import Listing
from astra.errors import InputError
from astra.values import of_kind, token_count

if TYPE_CHECKING:
    from astra.hardware.cluster import Gpu
    from astra.model.shape import Model
    from astra.model.summary import ModelSummary
    from astra.money.catalogue import Offer

DEFAULT_SEQ_LEN = 4096
MAX_SEQ_LEN = 10**9
MAX_ROWS_SHOWN = 25  # of offers, in a notebook


def models(filter: str = "", *, seq_len: int | str | None = None) -> "Listing[ModelSummary]":  # noqa: A002
    """The models that come with Astra, with `filter` in name, family or Hugging Face id.

    >>> import astra
    >>> astra.models("llama-3-8b")
    1 model: llama-3-8b
    >>> round(astra.models("llama-3-8b")[0].parameters.total / 1e9, 2)
    8.03

    FLOPs are counted at `seq_len`, else at 4,096 tokens or the model's longest.
    """
    from astra.model.zoo import matching_names, zoo_model
    from astra.report.models import listing_table, short_json

    length = None if seq_len is None else flops_seq_len(seq_len)
    found = [
        summary_of(zoo_model(name), length)
        for name in matching_names(of_kind(filter, "filter", str, "text"))
    ]
    return Listing.of(
        found,
        what="model",
        name=lambda each: each.model.name,
        row=lambda each: {k: v for k, v in short_json(each).items() if k != "source"},
        table=listing_table,
    )


def summary_of(model: "Model", seq_len: int | None = None) -> "ModelSummary":
    """One model with its counts."""
    from astra.model.summary import model_summary

    longest = model.max_positions or DEFAULT_SEQ_LEN
    return model_summary(model, seq_len or min(DEFAULT_SEQ_LEN, longest))


def flops_seq_len(said: int | str) -> int:
    try:
        return token_count(said, "--seq-len", most=MAX_SEQ_LEN)
    except InputError:
        raise InputError(
            f"--seq-len {said}: a whole number from 1 to {MAX_SEQ_LEN:,} is needed."
        ) from None


def gpus(filter: str = "") -> "Listing[Gpu]":  # noqa: A002
    """The GPUs that are known, with these words in name, alias, maker, architecture or form.

    >>> import astra
    >>> astra.gpus("h200")
    4 GPUs: GH200-144GB, GH200-96GB, H200-NVL, H200-SXM
    """
    from astra.hardware.catalogue import all_gpus
    from astra.report.gpus import filter_gpus, gpu_row, gpus_table

    return Listing.of(
        filter_gpus(all_gpus(), of_kind(filter, "filter", str, "text")),
        what="GPU",
        name=lambda gpu: gpu.name,
        row=gpu_row,
        table=gpus_table,
    )


def prices(
    gpu: str | None = None,
    *,
    cloud: str | Sequence[str] | None = None,
    region: str | Sequence[str] | None = None,
    spot: bool = False,
    offers: "Sequence[Offer] | None" = None,
) -> "Listing[Offer]":
    """What GPUs cost to rent, cheapest first: offers with their machine, date and source.

    >>> import astra
    >>> cheapest = astra.prices("h100", cloud=["aws", "gcp"])[0]
    >>> cheapest.machine.gpu, cheapest.usd_per_gpu_hour > 0
    ('H100-80GB-SXM', True)

    `offers` takes the place of the catalogue that comes with Astra.
    """
    from astra.hardware.catalogue import find_gpu
    from astra.money.catalogue import filter_offers, offers_at
    from astra.money.options import split_names
    from astra.report.prices import by_price, offer_json, prices_table

    clouds = split_names(cloud)
    known = offers_at(clouds) if offers is None else tuple(offers)
    listed = filter_offers(known, clouds, split_names(region), spot)
    wanted = None if gpu is None else find_gpu(gpu)[0].name
    return Listing.of(
        by_price([offer for offer in listed if wanted in (None, offer.machine.gpu)]),
        what="offer",
        name=lambda offer: f"{offer.machine.gpu} ${offer.usd_per_gpu_hour:.2f}",
        row=offer_json,
        table=lambda listing: prices_table(listing, MAX_ROWS_SHOWN),
    )
