"""A GPU of one's own: units, guesses, and errors that name the place."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.errors import InputError
from astra.files import parse_toml
from astra.hardware.gpu_file import gpu_of, read_gpu, read_hardware_toml
from astra.hardware.units import BYTES, BYTES_PER_S, FLOPS_PER_S, QuantityKind, quantity
from astra.timing.link_curves import link_class

EXAMPLE = Path(__file__).parents[2] / "examples" / "my-gpu.toml"
NEEDED: dict[str, Any] = {
    "memory_bytes": "80 GB",
    "memory_bytes_per_s": "3.35 TB/s",
    "bf16_flops_per_s": "989 TFLOP/s",
}


def test_the_example_gpu_has_ten_lines_and_loads() -> None:
    lines = EXAMPLE.read_text().splitlines()
    assert len([line for line in lines if not line.startswith("#")]) <= 10
    gpu = read_gpu(EXAMPLE)
    assert (gpu.name, gpu.memory_bytes, gpu.node.nic_bytes_per_s) == ("my-gpu", 64e9, 25e9)


def test_three_figures_make_a_gpu_and_every_guess_is_said() -> None:
    gpu = gpu_of(NEEDED, "mine.toml", "mine")
    assert gpu.name == "mine"
    assert gpu.usable_bytes == 0.985 * 80e9
    assert gpu.fp16_flops_per_s == gpu.bf16_flops_per_s == 989e12
    assert (gpu.link.kind, gpu.link.bytes_per_s, gpu.link.domain_gpus) == ("PCIe", 31.5e9, 1)
    assert (gpu.node.gpus, gpu.node.nic_bytes_per_s) == (8, 25e9)
    guessed = {guess.split(":")[0] for guess in gpu.assumed}
    assert guessed == {
        "usable_bytes",
        "fp16_flops_per_s",
        "link",
        "node.gpus",
        "node.nic_bytes_per_s",
        "node.pcie_bytes_per_s",
    }


def test_a_gpu_with_fp16_only_is_not_given_bf16() -> None:
    raw = {key: value for key, value in NEEDED.items() if key != "bf16_flops_per_s"}
    gpu = gpu_of(raw | {"fp16_flops_per_s": 1e14}, "mine.toml", "mine")
    assert gpu.bf16_flops_per_s is None


def test_what_is_given_is_not_guessed() -> None:
    node = {"gpus": 4, "nic_bytes_per_s": "400 Gbps", "pcie_bytes_per_s": 63e9}
    link = {"kind": "xGMI", "bytes_per_s": "300 GB/s", "peer_bytes_per_s": 1e11, "domain_gpus": 4}
    raw = NEEDED | {"usable_bytes": "79.1 GiB", "fp16_flops_per_s": 9e14}
    gpu = gpu_of(raw | {"node": node, "link": link}, "mine.toml", "mine")
    assert gpu.assumed == ()
    assert gpu.node.nic_bytes_per_s == 50e9


def test_a_link_of_no_known_kind_is_read_by_its_speed_and_says_so() -> None:
    for said, more, kind, found in (
        (None, {}, "NVLink", "nvlink"),
        (None, {"peer_bytes_per_s": "30 GB/s"}, "mesh", "mesh"),
        (None, {"bytes_per_s": "60 GB/s"}, "PCIe", "pcie"),  # a PCIe 5.0 x16 has 63
        ("HCCS", {"peer_bytes_per_s": "28 GB/s"}, "HCCS (read as mesh)", "mesh"),
        ("Xe Link", {}, "Xe Link (read as NVLink)", "nvlink"),
        ("NVLink 4+NVSwitch", {}, "NVLink 4+NVSwitch", "nvlink"),
        ("PCIe", {}, "PCIe", "pcie"),  # it was said
    ):
        link = {"bytes_per_s": "200 GB/s"} | more | ({"kind": said} if said else {})
        gpu = gpu_of(NEEDED | {"link": link}, "mine.toml", "mine")
        assert (gpu.link.kind, link_class(gpu)) == (kind, found), link
        notes = [guess for guess in gpu.assumed if guess.startswith("link.kind: ")]
        assert len(notes) == (said not in ("NVLink 4+NVSwitch", "PCIe")), link
        assert all("NVLink, xGMI, RoCE, mesh and PCIe are known" in note for note in notes)
    slower = NEEDED | {"link": {"bytes_per_s": "60 GB/s"}, "node": {"pcie_bytes_per_s": "32 GB/s"}}
    assert gpu_of(slower, "mine.toml", "mine").link.kind == "NVLink"


def test_a_source_may_carry_a_toml_date() -> None:
    text = '[source]\nkind = "vendor"\nwhere = "data sheet"\nread_on = 2026-01-31\n'
    gpu = gpu_of(NEEDED | parse_toml(text, "mine.toml"), "mine.toml", "mine")
    assert gpu.source.read_on == "2026-01-31"


@pytest.mark.parametrize(
    ("text", "value"),
    [("80 GB", 80e9), ("80GB", 80e9), ("79.1 GiB", 79.1 * 2**30), ("81559 MiB", 81559 * 2**20)],
)
def test_memory_may_be_written_with_a_unit(text: str, value: float) -> None:
    assert quantity(text, BYTES, "memory_bytes") == pytest.approx(value, rel=1e-12)


def test_bits_and_bytes_per_second_differ_by_eight() -> None:
    assert quantity("400 Gbps", BYTES_PER_S, "nic") == quantity("50 GB/s", BYTES_PER_S, "nic")


# What is changed in a good description, and what the error must say about it.
HOSTILE: list[tuple[dict[str, Any], list[str]]] = [
    ({"memory_bytes": "80 TFLOP/s"}, ["memory_bytes", "TFLOP/s", "80 GB"]),
    ({"memory_bytes": "80 gb"}, ["memory_bytes", "gb", "80 GB"]),
    ({"memory_bytes": "80"}, ["memory_bytes", "'80'", "80 GB"]),
    ({"memory_bytes": "lots"}, ["memory_bytes", "'lots'", "80 GB"]),
    ({"memory_bytes": 80}, ["memory_bytes", "80", "in bytes", "80 GB"]),
    ({"memory_bytes": -80e9}, ["memory_bytes", "80 GB"]),
    ({"memory_bytes": float("nan")}, ["memory_bytes", "nan", "80 GB"]),
    ({"memory_bytes": float("inf")}, ["memory_bytes", "inf", "80 GB"]),
    ({"memory_bytes": True}, ["memory_bytes", "True", "80 GB"]),
    ({"memory_bytes": {"a": 1}}, ["memory_bytes", "80 GB"]),
    ({"memory_bytes": [1]}, ["memory_bytes", "80 GB"]),
    ({"memory_bytes_per_s": "3.35 TB"}, ["memory_bytes_per_s", "TB", "TB/s"]),
    ({"memory_bytes_per_s": "400 Gb/s"}, ["memory_bytes_per_s", "Gb/s", 'try "400 Gbps"']),
    ({"bf16_flops_per_s": 989}, ["bf16_flops_per_s", "TFLOP/s"]),
    ({"bf16_flops_per_s": "9" * 10_000 + " TFLOP/s"}, ["bf16_flops_per_s", "TFLOP/s"]),
    ({"usable_bytes": "90 GiB"}, ["usable_bytes", "memory_bytes", "Leave usable_bytes out"]),
    ({"memory_byte": 1}, ["memory_byte", "Did you mean memory_bytes"]),
    ({"link": "NVLink"}, ["link", "'NVLink'", "[link]"]),
    ({"link": {"kind": "x"}}, ["link.bytes_per_s", "missing"]),
    ({"link": {"kind": 5, "bytes_per_s": 1e11}}, ["link.kind = 5", "str"]),
    ({"link": {"bytes_per_s": 1e11, "peer_bytes_per_s": 2e11}}, ["peer_bytes_per_s", "Try"]),
    ({"link": {"bytes_per_s": 1e11, "domain_gpus": 3}}, ["domain of 3", "nodes of 8", "Try"]),
    (
        {"link": {"bytes_per_s": 1e11, "domain_gpus": 12}},
        ["domain of 12", "Try a domain of 8 or 16"],
    ),
    ({"link": {"bytes_per_s": 1e11, "domain_gpus": 8 * 10**5}}, ["800,000", "Try 8"]),
    ({"node": {"gpus": 0}}, ["node.gpus = 0", ">= 1"]),
    ({"node": {"gpus": "eight"}}, ["node.gpus = 'eight'", "int"]),
    ({"node": {"gpu": 8}}, ["node.gpu", "Did you mean gpus"]),
    ({"node": {"nic_bytes_per_s": 400}}, ["node.nic_bytes_per_s = 400", "bytes/s"]),
    ({"name": "a\nb"}, ["name", "my-gpu"]),
    ({"name": "x" * 1000}, ["name", "64 letters"]),
    ({"name": 5}, ["name = 5", "str"]),
    ({"source": {"kind": "vendor"}}, ["source.where", "missing"]),
    ({"aliases": "x"}, ["aliases = 'x'", "array"]),
]


@each_case("change, said", HOSTILE)
def test_a_bad_field_is_an_error_that_names_it_and_what_to_try(
    change: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        gpu_of(NEEDED | change, "mine.toml", "mine")
    message = str(error.value)
    assert message.startswith("mine.toml: ") and len(message) < 600
    assert [word for word in said if word not in message] == []


@pytest.mark.parametrize("field", list(NEEDED))
def test_a_missing_field_is_named_with_an_example(field: str) -> None:
    raw = {key: value for key, value in NEEDED.items() if key != field}
    with pytest.raises(InputError, match=rf"{field} is missing.*Try {field} = "):
        gpu_of(raw, "mine.toml", "mine")


@each_case(
    "text",
    [
        ".".join(["a"] * 1000) + " = 1",
        ".".join(["a"] * 10**6) + " = 1",
        "a = 1  # and so on\n" * 10**5,
        "memory_bytes = 0x" + "f" * 8000,
        "memory_bytes = " + "9" * 8000,
        "memory_bytes = " + "[" * 3000,
        "memory_bytes = ",
        "\x00",
    ],
)
def test_a_monstrous_file_is_bad_input_and_nothing_worse(tmp_path: Path, text: str) -> None:
    path = tmp_path / "monster.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"monster\.toml"):
        read_gpu(path)


@each_case(
    "name, said",
    [
        ("missing.toml", "no such file"),
        (".toml", "ends in .toml"),
        ("plain.txt", "ends in .toml"),
        ("x" * 5000 + ".toml", "File name too long"),
        ("\0.toml", "not a plain file"),
        ("/dev/null", "ends in .toml"),
        ("\udcff.toml", "not UTF-8"),
    ],
)
def test_a_path_that_cannot_be_read_is_bad_input(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_hardware_toml(tmp_path / name)


def test_an_endless_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "endless.toml"
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="not a plain file"):
        read_gpu(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
fields = st.sampled_from(["name", "memory_bytes", "usable_bytes", "link", "node", "source", "x"])


@settings(deadline=None)
@given(st.dictionaries(fields, values, max_size=3))
def test_any_description_is_a_gpu_or_bad_input(change: dict[str, Any]) -> None:
    try:
        gpu = gpu_of(NEEDED | change, "mine.toml", "mine")
    except InputError:
        return
    assert gpu.memory_bytes >= 1e8 and gpu.usable_bytes >= 1e8


@given(st.data(), st.sampled_from([BYTES, BYTES_PER_S, FLOPS_PER_S]))
def test_any_text_is_a_quantity_within_its_bounds_or_bad_input(
    data: st.DataObject, kind: QuantityKind
) -> None:
    unit = data.draw(st.sampled_from(sorted(kind.units)))
    amount = data.draw(st.integers(0, 10**20 - 1))
    inside = kind.least <= amount * kind.units[unit] <= kind.most
    if inside:
        value = quantity(f"{amount} {unit}", kind, "field")
        assert value == pytest.approx(amount * kind.units[unit], rel=1e-12)
    other = st.text(max_size=30).filter(lambda text: not re.match(r"\s*[0-9.]+ *[A-Z]", text))
    for text in (data.draw(other), *([] if inside else [f"{amount}{unit}"])):
        with pytest.raises(InputError, match=r"^field = "):
            quantity(text, kind, "field")


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"link": {"bytes_per_s": 1e11, "gpus": 4}}, "link.gpus: .* mean node.gpus or domain_gpus"),
        ({"node": {"domain_gpus": 4}}, "node.domain_gpus: .* mean link.domain_gpus or gpus"),
        ({"nic_bytes_per_s": 1e11}, "nic_bytes_per_s: .* mean node.nic_bytes_per_s"),
    ],
)
def test_a_field_of_another_table_is_suggested_with_its_table(
    change: dict[str, Any], hint: str
) -> None:
    with pytest.raises(InputError, match=hint):
        gpu_of(NEEDED | change, "mine.toml", "mine")
