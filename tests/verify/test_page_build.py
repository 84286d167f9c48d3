"""The built page is that of its sources."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "src/astra/web/static"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (ROOT / "web/node_modules").is_dir(),
    reason="needs Node and `npm ci` in web/",
)


def test_building_the_page_again_gives_the_files_that_are_shipped(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None
    subprocess.run([node, "build.mjs", str(tmp_path / "static")], cwd=ROOT / "web", check=True)
    again = {path.name: path.read_bytes() for path in (tmp_path / "static").iterdir()}
    assert again == {path.name: path.read_bytes() for path in BUILT.iterdir()}
