"""What `astra serve` says of itself is true of any question, by Schemathesis; and it holds out."""

import subprocess
import sys
from pathlib import Path

from tests.support.frameworks import needs
from tests.support.load import load
from tests.support.serving import serving

needs("schemathesis", "starlette", "uvicorn")

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance,negative_data_rejection,"
    "unsupported_method"
)


def test_no_question_breaks_the_server_or_its_description(tmp_path: Path) -> None:
    """Questions that the schema allows may still be refused: no schema knows every model."""
    with serving("--time-limit", "5") as (address, _):
        asked = (sys.executable, "-m", "schemathesis.cli", "run", f"{address}/api/openapi.json")
        options = ("--checks", CHECKS, "--max-examples", "10", "--max-time", "25")
        done = subprocess.run((*asked, *options), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_two_hundred_clients_are_answered_or_told_to_come_again() -> None:
    found = load(200, 10)
    assert set(found.statuses) == {200, 429}
    assert found.most_bytes < 1e9
