"""The process that answers: one question after another from standard input, until that ends.

A question is a line `NAME SECONDS LENGTH` and so many bytes of JSON; the line `stop` asks for the
best so far. It says `EVENT LENGTH` and so many bytes: `best` and `progress` while it searches, then
`done`, `refused` or `failed`. Whoever started it may end it at any time, and where that process is
gone this one ends too.
"""

import errno
import os
import sys
import sysconfig
import threading
import time
import traceback
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import msgspec

from astra import files
from astra.errors import InputError
from astra.hardware.stack import user_stack_folder
from astra.report.refusals import ErrorDocument, ErrorFacts, refusal
from astra.search.result import Progress
from astra.web.questions import QUESTIONS, Answering, answer

PACKAGE = Path(files.__file__).parent
BETWEEN_EVENTS_S = 0.1
FIRST_QUESTION = (
    b'{"model": "llama-3-8b", "gpus": "h100:8", "global_batch": 32, "seq_len": 4096, "top": 1,'
    b' "set": {"tp": 1}}'
)


class Mouth:
    """Says events on what was standard output; what anything prints goes to standard error."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def say(self, event: str, payload: bytes) -> None:
        try:
            self.out.write(b"%s %d\n%s" % (event.encode(), len(payload), payload))
            self.out.flush()
        except BrokenPipeError:  # nobody hears it
            os._exit(0)


class Watch:
    """Tells how a search goes: each better plan, else a few times a second."""

    def __init__(self, mouth: Mouth) -> None:
        self.mouth = mouth
        self.started = time.monotonic()
        self.last_s = 0.0
        self.best_step_s = float("inf")

    def __call__(self, now: Progress | str) -> None:
        gone_s = time.monotonic() - self.started
        best_s = None if isinstance(now, str) else now.best_step_s
        better = best_s is not None and best_s < self.best_step_s
        if not better and gone_s - self.last_s < BETWEEN_EVENTS_S:
            return
        self.last_s, self.best_step_s = gone_s, best_s or self.best_step_s
        said: dict[str, Any] = {"seconds": round(gone_s, 3)}
        if isinstance(now, str):
            said["doing"] = now
        else:
            said |= {
                "candidates": now.candidates,
                "best_step_s": now.best_step_s,
                "gap_fraction": now.gap_fraction,
            }
        self.mouth.say("best" if better else "progress", msgspec.json.encode(said))


class Ear(threading.Thread):
    """Hears questions and `stop`; at the end of the input the process ends, whatever it does."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.questions: SimpleQueue[tuple[str, float, bytes]] = SimpleQueue()
        self.stop = threading.Event()

    def run(self) -> None:
        for line in self.stream:
            if line == b"stop\n":
                self.stop.set()
                continue
            name, seconds, length = line.split()
            body = self.stream.read(int(length))
            self.stop.clear()
            self.questions.put((name.decode(), float(seconds), body))
        os._exit(0)


def main() -> None:
    mouth, ear = Mouth(), Ear(sys.stdin.buffer)
    ear.start()
    _close_files()
    answer("plan", FIRST_QUESTION, Answering(time_limit_s=60.0))  # reads the tables that all need
    mouth.say("ready", b"")
    while True:
        name, seconds, body = ear.questions.get()
        how = Answering(time_limit_s=seconds, watch=Watch(mouth), is_cancelled=ear.stop.is_set)
        mouth.say(*_answered(name, body, how))


def _answered(name: str, body: bytes, how: Answering) -> tuple[str, bytes]:
    try:
        return "done", answer(name, body, how)
    except InputError as error:
        words = QUESTIONS[name][0].__struct_fields__
        said, event = refusal(error, words), "refused"
    except Exception as error:  # the server lives on, and its log has the place
        traceback.print_exc()
        said = ErrorFacts(message=f"a fault of Astra's: {type(error).__name__}: {error}")
        event = "failed"
    return event, msgspec.json.encode(ErrorDocument(error=said))


def _close_files() -> None:
    """No file is opened from here on but Astra's own and Python's; nothing is started or asked."""
    files.read_only_below(PACKAGE, user_stack_folder())
    python = {Path(path) for path in sysconfig.get_paths().values()}
    folders = tuple(f"{path}{os.sep}" for path in (PACKAGE, user_stack_folder(), *python))
    refused = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")

    def check(event: str, facts: tuple[Any, ...]) -> None:
        if event in refused:
            raise PermissionError(errno.EACCES, "nothing is started from here")
        if event != "open" or isinstance(facts[0], int):
            return
        path = os.path.abspath(os.fsdecode(facts[0]))  # noqa: PTH100 - links stay what they are
        if not path.startswith(folders):
            raise PermissionError(errno.EACCES, "no file is read here", path)

    sys.addaudithook(check)


if __name__ == "__main__":
    main()
