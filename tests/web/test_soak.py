"""A minute of two hundred clients."""

import pytest
from tests.support.load import load


@pytest.mark.soak
def test_two_hundred_clients_are_answered_or_told_to_come_again_for_a_minute() -> None:
    found = load(200, 60)
    assert set(found.statuses) == {200, 429}
    assert found.most_bytes < 1e9
