"""The accuracy page says what its tables say."""

import re

from tools.accuracy.page import _inside, _ranking

from astra.fit.validate import Sweep


def test_the_means_over_sweeps_are_those_of_the_table_below() -> None:
    sweeps = tuple(
        Sweep(name=name, runs=5 + row, regret_fraction=regret, kendall_tau=tau)
        for row, (name, regret, tau) in enumerate(
            [("a one", 0.0, 1.0), ("a two", 0.1, 0.5), ("vtrain-single x", 0.2, 0.3)]
        )
    )
    page = _ranking(sweeps)
    assert "average\n10.0% slower" in page and "tau is 0.60 on average" in page
    assert "it is 5.0% and 0.75." in page
    assert re.search(r"^\| a \| 2 \| 5\.0% \| 0\.75 \|$", page, re.M)
    assert re.search(r"^\| a two \| 6 \| 10\.0% \| 0\.50 \|$", page, re.M)


def test_runs_are_counted_within_the_scatter_of_whole_gpus_families_alike() -> None:
    """With a scale of 6.7 %: 4 % off is inside half of the range, 12 % only inside 95 %."""
    by_kind = {
        ("a", "device"): [0.04, 0.04, 0.04, 0.04],
        ("b", "reserved"): [0.12],
        ("c", "allocated"): [9.0],
    }
    assert _inside(by_kind) == "50%, 50% and 100%"
