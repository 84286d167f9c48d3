"""FlagScale's own verdict on launch files, by a process that knows it (`flagscale_judge.py`)."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

JUDGE = Path(__file__).with_name("flagscale_judge.py")


class Judge:
    """The process that knows FlagScale."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("flag_scale")
        assert spec is not None and spec.submodule_search_locations is not None
        (root,) = spec.submodule_search_locations
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [sys.executable, str(JUDGE), root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )

    def ask(self, folder: Path, generation: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"folder": str(folder), "architecture": generation}))
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder
