"""Priced plans as a table: rows, or a DataFrame."""

import sys
from types import ModuleType
from typing import Any

import pytest

import astra
from astra.cost.step import PARTS
from astra.report import plan_table


@pytest.fixture(scope="module")
def priced() -> list[astra.PricedPlan]:
    return [
        astra.predict("llama-3-8b", gpus="h100:16", tp=tp, pp=2, global_batch=64, seq_len=4096)
        for tp in (1, 2)
    ]


def test_rows_are_flat_and_have_the_same_columns(priced: list[astra.PricedPlan]) -> None:
    rows = astra.to_rows(priced)
    assert [row["tp"] for row in rows] == [1, 2]
    assert rows[0].keys() == rows[1].keys()
    for row, answer in zip(rows, priced, strict=True):
        unknown = {name for name, value in row.items() if value is None}
        assert unknown == {"hours", "usd", "usd_per_hour", "step_kwh", "run_kwh"}
        assert all(isinstance(row[name], str | int | float) for name in row.keys() - unknown)
        assert row["step_s"] == answer.step_s and row["fits"] is answer.memory.fits
        assert (row["pp"], row["dp"], row["gpus"]) == (2, 8 // row["tp"], 16)
        assert sum(row[f"{part}_s"] for part in PARTS) == pytest.approx(row["step_s"])
        assert row["allocated_bytes"] < row["reserved_bytes"] < row["usable_bytes"]


def test_one_answer_is_one_row(priced: list[astra.PricedPlan]) -> None:
    assert astra.to_rows(priced[0]) == astra.to_rows(priced)[:1]
    assert astra.to_rows([]) == []


def install(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Only these DataFrame libraries, each of which gives its name and its rows back."""
    for name in names:
        module = ModuleType(name)
        module.DataFrame = lambda rows, name=name: (name, rows)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(plan_table, "find_spec", lambda name: name if name in names else None)


@pytest.mark.parametrize(
    ("installed", "wanted", "used"),
    [
        (("pandas", "polars"), None, "pandas"),
        (("polars",), None, "polars"),
        (("pandas", "polars"), "polars", "polars"),
    ],
)
def test_a_data_frame_is_made_by_the_library_that_is_there(
    priced: list[astra.PricedPlan],
    monkeypatch: pytest.MonkeyPatch,
    installed: tuple[str, ...],
    wanted: str | None,
    used: str,
) -> None:
    install(monkeypatch, *installed)
    found: Any = astra.to_frame(priced, wanted)
    assert found == (used, astra.to_rows(priced))


def test_without_a_library_the_error_names_the_way_out(
    priced: list[astra.PricedPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    with pytest.raises(astra.InputError, match=r"neither pandas nor polars.*to_rows"):
        astra.to_frame(priced)
    install(monkeypatch, "pandas")
    with pytest.raises(astra.InputError, match="polars is not installed"):
        astra.to_frame(priced, "polars")
    with pytest.raises(astra.InputError, match=r"'numpy'.*pandas or polars"):
        astra.to_frame(priced, "numpy")


def test_dollars_energy_fit_and_offload_are_columns() -> None:
    job: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": 4096, "tp": 1}
    words: dict[str, Any] = {"tokens": "1B", "price": {"h100": 2.0}, "objective": "energy"}
    best = astra.plan("llama-3-8b", **job, **words).best
    assert best is not None and best.energy is not None
    (row,) = astra.to_rows(best)
    assert (row["usd"], row["hours"], row["usd_per_hour"]) == (
        *(best.usd, best.hours, best.usd_per_hour),
    )
    assert row["usd"] > 0 and row["hours"] > 0
    assert (row["step_kwh"], row["run_kwh"]) == (best.energy.step_kwh, best.energy.run_kwh)
    assert row["fit_probability"] == best.memory.fit_probability
    assert row["offload_optimizer_fraction"] == best.plan.offload_optimizer_fraction
