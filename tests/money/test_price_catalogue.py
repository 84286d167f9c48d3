"""The price catalogue: dated, sourced, of machines that can be planned for."""

import datetime
from pathlib import Path

import pytest
from tests.support.cases import each_case

from astra.cli.main import run
from astra.errors import InputError
from astra.hardware.catalogue import gpu_names
from astra.hardware.gpu_file import check_gpu
from astra.money.catalogue import (
    filter_offers,
    instances,
    machine_gpu,
    price_source,
    shipped_offers,
)
from astra.money.skypilot_catalogue import names, skypilot_offers
from astra.money.user_prices import owned_usd_per_gpu_hour, parse_prices, parse_usd

VMS = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
p5.48xlarge,192,2048,H100,8.0,"{'Gpus': []}",us-east-1,us-east-1a,50.0,20.0
p5.48xlarge,192,2048,H100,8.0,"{'Gpus': []}",us-east-1,us-east-1b,50.0,18.0
new.8xlarge,192,2048,H100,8.0,,us-east-1,us-east-1b,40.0,
odd.type,192,2048,TPU-v5,8.0,,us-east-1,us-east-1b,1.0,
m5.large,2,8,,,,us-east-1,us-east-1a,0.1,0.05
"""
GCP = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
a3-highgpu-8g,208,1872,,,,us-central1,us-central1-a,10.0,3.0
,,,H100,8.0,,us-central1,us-central1-a,78.0,20.0
,,,H100,8.0,,us-east5,us-east5-a,78.0,20.0
"""


def test_every_offer_has_a_machine_that_can_be_planned_for_and_a_date() -> None:
    known = set(gpu_names())
    for offer in shipped_offers():
        machine = offer.machine
        assert machine.gpu in known
        check_gpu(machine_gpu(machine), machine.instance)
        assert 0 < offer.usd_per_gpu_hour < 50
        assert datetime.date.fromisoformat(offer.date) > datetime.date(2026, 2, 1)
    assert price_source().kind == "published"


def test_no_auction_floor_is_among_the_prices() -> None:
    """An A100 for a cent an hour is where bidding starts, not what one pays."""
    large = [o for o in shipped_offers() if o.machine.gpu.startswith(("A100", "H100", "H200"))]
    assert len(large) > 200 and min(o.usd_per_gpu_hour for o in large) > 0.4
    assert "mithril" not in {o.machine.cloud for o in shipped_offers()}


def test_a_network_that_nobody_publishes_is_called_a_guess() -> None:
    guessed = [m for m in instances().values() if m.certainty == "guessed"]
    assert guessed and all(m.network_source.startswith("guessed") for m in guessed)
    assert all("guessed" in " ".join(machine_gpu(m).assumed) for m in guessed)
    assert instances()["aws", "p5.48xlarge"].nic_bytes_per_s == 50e9


def test_the_ram_of_what_is_sold_is_known_and_more_of_it_costs_more() -> None:
    assert all(offer.machine.ram_bytes for offer in shipped_offers())
    assert instances()["cudo", "sapphire-rapids-h100_1x2v4gb"].ram_bytes == 4 * 2**30
    assert instances()["aws", "p5.48xlarge"].ram_bytes == 2048 * 2**30
    assert instances()["oci", "BM.GPU.B200.8"].ram_bytes is None  # no list has it


def test_the_cheapest_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert run(["prices", "h100", "--json", "--spot"]) == 0
    found = json.loads(capsys.readouterr().out)
    prices = [row["usd_per_gpu_hour"] for row in found["offers"]]
    assert len(prices) > 50 and prices == sorted(prices)
    assert all(row["date"] and row["source"] for row in found["offers"])
    run(["prices", "h100"])
    assert "2026-" in (shown := capsys.readouterr().out) and "Source:" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prices", "h800"], "--price h800="),
        (["prices", "h100", "--cloud", "awss"], "Did you mean aws"),
        (["prices", "h100", "--region", "us-eats-1"], "us-east-1"),
        (["prices", "h100", "--prices", "web"], "shipped, sky"),
    ],
)
def test_what_is_not_known_is_said(arguments: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(arguments)


def sky_home(folder: Path) -> Path:
    for version, cloud, text in (("v8", "aws", VMS), ("v8", "gcp", GCP), ("v7", "aws", "old")):
        path = folder / ".sky" / "catalogs" / version / cloud / "vms.csv"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_skypilots_own_files_are_read(tmp_path: Path) -> None:
    offers, _ = skypilot_offers(sky_home(tmp_path))
    found = {(o.machine.instance, o.region, o.spot): o for o in offers}
    assert found["p5.48xlarge", "us-east-1", False].usd_per_hour == 50
    assert found["p5.48xlarge", "us-east-1", True].usd_per_hour == 18  # the cheapest zone
    assert found["p5.48xlarge", "us-east-1", True].machine.nic_bytes_per_s == 50e9
    assert found["new.8xlarge", "us-east-1", False].machine.certainty == "guessed"
    assert found["new.8xlarge", "us-east-1", False].machine.ram_bytes == 2048 * 2**30
    assert found["a3-highgpu-8g", "us-central1", False].usd_per_hour == 88  # host and GPUs
    assert ("a3-highgpu-8g", "us-east5", False) not in found  # no host is sold there
    assert {o.machine.gpu for o in offers} == {"H100-80GB-SXM"}


BAD = (
    VMS
    + """\
p5.48xlarge,192,2048,H100,8.0,,us-east-2,us-east-2a,47.0,much
p5.48xlarge,192,2048,H100,8.0,,us-west-2,us-west-2a,cheap,
p5.48xlarge,192,2048,H100,8.0,,us-west-2,us-west-2b,-3,
p5.48xlarge,192,2048,H100,8.0,,us-west-2,us-west-2c,,
g9.huge,192,2048,H100,many,,us-west-2,us-west-2a,3.0,
g9.three,192,2048,H100,3.0,,us-west-2,us-west-2a,3.0,
p5.48xlarge,192,2048,H100,8.0
"""
)


def test_rows_that_give_no_offer_are_counted_with_the_first_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = sky_home(tmp_path)
    (home / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv").write_text(BAD, encoding="utf-8")
    offers, (said,) = skypilot_offers(home)
    assert "us-west-2" not in {offer.region for offer in offers}
    assert [o.usd_per_hour for o in offers if o.region == "us-east-2"] == [47.0]  # not its spot
    rows = BAD.count("H100") + BAD.count("TPU") + GCP.count("H100")
    used = 4  # three of aws, and the accelerator whose host is sold
    assert f"{rows - used} offers of GPUs are left out" in said
    for reason in (
        "1 where the accelerator is not known here (first: odd.type, aws/vms.csv line 5)",
        "2 where Price is no amount of USD (first: p5.48xlarge, aws/vms.csv line 8)",
        "1 where SpotPrice is no amount of USD (first: p5.48xlarge, aws/vms.csv line 7)",
        "1 where there is no price (first: p5.48xlarge, aws/vms.csv line 10)",
        "1 where AcceleratorCount is no number (first: g9.huge, aws/vms.csv line 11)",
        "1 where the number of GPUs is none of 1, 2, 4, 8, 16 (first: g9.three, aws/vms.csv line",
        "1 where the row ends early (first: p5.48xlarge, aws/vms.csv line 13)",
        "1 where the host of the accelerator is not sold in its zone (first: H100, gcp/vms.csv",
    ):
        assert reason in said
    monkeypatch.setenv("SKY_RUNTIME_DIR", str(home))
    assert run(["prices", "h100", "--prices", "sky", "--json"]) == 0
    assert said in capsys.readouterr().err


def test_a_catalogue_without_any_known_gpu_is_an_error_that_says_why(tmp_path: Path) -> None:
    path = tmp_path / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv"
    path.parent.mkdir(parents=True)
    lines = VMS.splitlines(keepends=True)
    path.write_text(lines[0] + lines[4] + lines[5], encoding="utf-8")
    with pytest.raises(InputError, match=r"no offer of a known GPU.*1 offer of GPUs is left out"):
        skypilot_offers(tmp_path)


def test_skypilots_names_are_names_of_gpus() -> None:
    assert set(names().values()) <= set(gpu_names())
    assert names()["runpod", "H100"] == "H100-PCIe" and names()["*", "H100"] == "H100-80GB-SXM"


def test_a_home_without_skypilot_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave --prices out"):
        skypilot_offers(tmp_path)


def test_a_file_without_its_columns_is_named(tmp_path: Path) -> None:
    path = tmp_path / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv"
    path.parent.mkdir(parents=True)
    path.write_text("InstanceType,Region\np5,us\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"vms\.csv: the column AcceleratorCount"):
        skypilot_offers(tmp_path)


def test_prices_are_read_as_people_write_them() -> None:
    assert parse_prices("h100=2.49, a100-80g=$1.29") == {
        "H100-80GB-SXM": 2.49,
        "A100-80GB-SXM": 1.29,
    }
    assert parse_usd("400k", "x") == 400_000 and parse_usd("$400,000", "x") == 400_000


@each_case(
    "text, said",
    [
        ("h100", "not GPU=USD"),
        ("h100=", "not GPU=USD"),
        ("h100=-2", "0 or more"),
        ("h100=nan", "0 or more"),
        ("h100=9e9", "not believable"),
        ("h100=cheap", "not an amount"),
        ("h101=2", "unknown GPU"),
        ("h100=2,H100-80GB-SXM=3", "twice"),
    ],
)
def test_bad_prices_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_prices(text)


def test_owned_gpus_are_amortised_and_use_power() -> None:
    from astra.hardware.catalogue import find_gpu

    gpu, _ = find_gpu("h100")
    terms = owned_usd_per_gpu_hour(gpu, 30_000, 4, 0.10, 1.5)
    assert terms["amortisation"] == pytest.approx(30_000 / (4 * 365.25 * 24))
    assert terms["power"] == pytest.approx(0.7 * 1.2 * 1.5 * 0.10)


def test_regions_are_of_the_clouds_that_are_asked_for() -> None:
    some = filter_offers(shipped_offers(), ["aws"], ["us-east-1"])
    assert {o.place for o in some} == {("aws", "us-east-1")} and not any(o.spot for o in some)
    with pytest.raises(InputError, match="no prices of it at gcp"):
        filter_offers(shipped_offers(), ["gcp"], ["us-east-1"])


def test_prices_are_there_from_python_too() -> None:
    import astra

    found = astra.prices("h100", cloud="aws", spot=True)
    assert {o.machine.gpu for o in found} == {"H100-80GB-SXM"}
    costs = [o.usd_per_gpu_hour for o in found]
    assert costs == sorted(costs) and {o.spot for o in found} == {True, False}
