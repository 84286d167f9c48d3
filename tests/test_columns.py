"""Columns of few distinct values."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from astra.columns import factorized


@settings(max_examples=100)
@given(
    st.one_of(
        st.lists(st.integers(-5, 70), min_size=0, max_size=30),
        st.lists(st.integers(0, 10**12), min_size=0, max_size=30),
        st.lists(st.booleans(), min_size=0, max_size=30),
        st.lists(st.sampled_from([np.nan, 1.0, 1.25]), min_size=0, max_size=30),
    )
)
def test_distinct_values_and_their_places_give_back_the_column(values: list[float]) -> None:
    column: NDArray[np.float64] = np.array(values).reshape(1, -1)
    known, index = factorized(column)
    assert np.array_equal(known[index], column, equal_nan=column.dtype.kind == "f")
    assert len(known) == len(np.unique(column))
