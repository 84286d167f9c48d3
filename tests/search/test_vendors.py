"""GPUs of several vendors are never part of one job: each vendor has the best plans of its own."""

from typing import Any

import msgspec
import pytest

import astra
from astra.errors import InputError
from astra.hardware.catalogue import find_gpu
from astra.hardware.gpus_option import parse_gpus
from astra.hardware.vendors import by_vendor, vendor_note, vendor_of

SMALL: dict[str, Any] = {"global_batch": 64, "seq_len": 4096}
THREE = "h100:8,a100-80g:8,mi300x:8"


def names_of(gpus: str) -> list[list[str]]:
    return [[pool.gpu.name for pool in own.pools] for own in by_vendor(parse_gpus(gpus)[0])]


def test_a_cluster_is_split_by_vendor() -> None:
    assert names_of("h100:8,mi300x:8,a100-80g:8") == [
        ["MI300X"],
        ["A100-80GB-SXM", "H100-80GB-SXM"],
    ]
    assert len(names_of("h100:8,mi300x:8,gaudi3:8")) == 3
    whole, _ = parse_gpus("h100:8,a100-80g:8")
    assert by_vendor(whole) == (whole,) and vendor_note(whole) is None


@pytest.mark.parametrize(
    ("said", "meant"),
    [("nvidia", "NVIDIA"), ("AMD Inc.", "AMD"), (None, "NVIDIA"), ("Habana", "Habana")],
)
def test_a_vendor_has_one_name_however_a_file_spells_it(said: str | None, meant: str) -> None:
    assert vendor_of(msgspec.structs.replace(find_gpu("h100")[0], vendor=said)) == meant


@pytest.mark.slow
def test_plans_over_two_vendors_are_the_best_of_each_and_mix_types_of_one_alone() -> None:
    asked: dict[str, Any] = {**SMALL, "settings": ["mb=1", "cp=1", "sharding=optimizer"]}
    asked["risk"] = "none"
    both, nvidia, amd = (
        astra.plan("llama-3-8b", gpus=gpus, **asked)
        for gpus in (THREE, "h100:8,a100-80g:8", "mi300x:8")
    )
    assert both.best is not None and nvidia.best is not None and amd.best is not None
    assert len(nvidia.best.gpus) == 2, "types of one vendor are mixed"
    assert both.best.step_s == nvidia.best.step_s
    assert both.best.step_s <= amd.best.step_s
    apart = sorted([*(plan.step_s for plan in nvidia.plans), amd.best.step_s])[:10]
    assert [plan.step_s for plan in both.plans] == pytest.approx(apart, rel=1e-12)
    for plan in both.plans:
        used = [pool.gpu for pool in plan.plan.cluster.pools if pool.gpu.name in plan.gpus]
        assert len({gpu.vendor for gpu in used}) == 1
    assert both.mixed is not None and both.mixed.alone_step_s["MI300X"] == pytest.approx(
        amd.best.step_s
    )
    assert both.mixed.idle == {"MI300X": 8}


def test_an_answer_over_two_vendors_says_why_they_stay_apart() -> None:
    found = astra.plan("llama-3-8b", gpus="h100:8,mi300x:8", **SMALL)
    assert found.request.notes[-1] == (
        "AMD and NVIDIA GPUs are planned apart: no job has both, for RCCL and NCCL do not speak "
        "to each other"
    )
    with pytest.raises(InputError, match="use_all=True: AMD and NVIDIA GPUs are planned apart"):
        astra.plan("llama-3-8b", gpus="h100:8,mi300x:8", use_all=True, **SMALL)


@pytest.mark.slow
def test_the_fewest_gpus_of_two_vendors_are_those_of_one() -> None:
    pools = "t4:16,mi300x:8"
    asked: dict[str, Any] = {"precision": "fp16", "objective": "gpus", **SMALL}
    found = astra.plan("llama-3-8b", gpus=pools, **asked)
    alone = astra.plan("llama-3-8b", gpus="mi300x:8", **asked)
    assert found.best is not None and alone.best is not None
    assert found.best.gpus == alone.best.gpus


@pytest.mark.slow
def test_what_fits_no_vendor_is_told_of_each() -> None:
    found = astra.plan("llama-3.1-405b", gpus="h100:8,mi300x:8", **SMALL)
    assert found.best is None and found.nothing_fits is not None
    said = found.nothing_fits.binding
    assert "AMD: " in said and "closest is MI300X" in said
    assert "NVIDIA: " in said and "closest is H100-80GB-SXM" in said
    assert found.nothing_fits.closest is not None


def test_a_plan_over_two_vendors_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"of one vendor.*RCCL.*rule one-vendor"):
        astra.predict("llama-3-8b", gpus="h100:8,mi300x:8", pp=2, **SMALL)


@pytest.mark.slow
def test_a_plan_of_one_vendor_is_explained_beside_the_other() -> None:
    found = astra.plan("llama-3-8b", gpus="h100:8,mi300x:8", **SMALL).explain()
    changes = {change.what: change.plan for change in found.changes}
    assert "16 MI300X" in changes and "no H100-80GB-SXM" in changes
