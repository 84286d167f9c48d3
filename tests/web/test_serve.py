"""The questions over HTTP: the same numbers, the same errors, and nothing else."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.support.cases import each_case

import astra
from astra.cli.main import run
from astra.web.guard import MOST_BODY_BYTES, POLICY
from astra.web.routes import make_app

pytestmark = pytest.mark.slow  # processes are started

ADDRESS = "http://127.0.0.1:8400"
JOB: dict[str, Any] = {"model": "llama-3-8b", "gpus": "h100:8", "global_batch": 32, "seq_len": "4k"}
LONG = {
    "model": "llama-3-70b",
    "gpus": "h100:256,a100-80g:512,h200:64",
    "global_batch": 2048,
    "seq_len": 4096,
    "exact": True,
}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(make_app(), base_url=ADDRESS) as found:
        yield found


@pytest.fixture(scope="module")
def planned(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.post("/api/plan", json={**JOB, "set": {"tp": [1, 2]}}).json()
    return found


def without_seconds(answer: dict[str, Any]) -> dict[str, Any]:
    """But for how long it took."""
    return {**answer, "search": {**answer["search"], "seconds": 0.0}}


def test_a_plan_is_the_one_of_the_command_line_and_of_python(
    planned: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = "plan llama-3-8b --gpus h100:8 --global-batch 32 --seq-len 4k --set tp=1,2 --json"
    assert run(words.split()) == 0
    assert without_seconds(planned) == without_seconds(json.loads(capsys.readouterr().out))
    by_python = astra.plan("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096, tp=[1, 2])
    assert [plan["step_s"] for plan in planned["plans"]] == [p.step_s for p in by_python.plans]


def test_predict_explain_export_and_import_are_those_of_python(
    client: TestClient, planned: dict[str, Any]
) -> None:
    alone = client.post("/api/predict", json={**JOB, "tp": 2, "tokens": "1T"}).json()
    python = astra.predict(
        "llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096, tp=2, tokens="1T"
    )
    assert (alone["step_s"], alone["usd"]) == (python.step_s, python.usd)
    second = client.post("/api/predict", json={"plan": planned, "rank": 2}).json()
    assert second["step_s"] == planned["plans"][1]["step_s"]
    why = client.post("/api/explain", json={"plan": planned, "quick": True}).json()
    assert why["binding"] == astra.explain(planned, quick=True).to_dict()["binding"]
    job = client.post("/api/export", json={"plan": planned, "to": "megatron"}).json()
    texts = {file["name"]: file["text"] for file in job["files"]}
    assert texts == astra.export(planned, "megatron", None).texts
    asked = {"name": "args.txt", "text": texts["args.txt"], "gpus": "h100:8"}
    read = client.post("/api/import", json=asked).json()
    assert read["plan"]["micro_batch"] == planned["plans"][0]["plan"]["micro_batch"]


@each_case("name", ("models", "gpus", "prices", "rules", "stacks"))
def test_listings_are_those_of_the_command_line(
    name: str, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--json"]) == 0
    assert client.get(f"/api/{name}").json() == json.loads(capsys.readouterr().out)


def test_one_of_a_listing_and_what_is_refused(client: TestClient) -> None:
    assert client.get("/api/models?name=llama-3-8b").json()["layers"] == 32
    assert client.get("/api/gpus?name=h100").json()["name"] == "H100-80GB-SXM"
    assert client.get("/api/rules?name=tp-divides-heads").json()["name"] == "tp-divides-heads"
    refused = client.get("/api/gpus?nam=h100")
    assert refused.status_code == 422
    assert refused.json()["error"]["suggestions"] == ["name"]
    assert client.get("/api/gpus?name=/etc/passwd").status_code == 422
    assert client.get("/api/modls").status_code == 404
    assert client.get("/api/plan").status_code == 405


REFUSED = (
    ({"seqlen": 1}, "seqlen", "seq_len"),
    ({"model": "llama-3-8"}, "model", "llama-3-8b"),
    ({"gpus": "h10:8"}, "gpus", "H100"),
    ({"runtime": "megatronn"}, "runtime", "megatron"),
    ({"set": {"tpp": 2}}, "set", "tp"),
    ({"seq_len": "8q"}, "seq_len", None),
    ({"top": "many"}, "top", None),
    ({"rules": ["$tp >"]}, "rules", None),
)


@each_case("said", REFUSED)
def test_a_word_that_cannot_be_used_is_named_with_what_is_meant(
    said: tuple[dict[str, Any], str | None, str | None], client: TestClient
) -> None:
    words, field, meant = said
    refused = client.post("/api/plan", json={**JOB, **words})
    error = refused.json()["error"]
    assert refused.status_code == 422 and len(error["message"]) > 10
    assert error["field"] == field
    assert meant is None or meant in error["suggestions"]


PATHS = (
    ("plan", {**JOB, "model": "{}/config.json"}),
    ("plan", {**JOB, "model": "{}"}),
    ("plan", {**JOB, "gpus": "{}/gpu.toml:8"}),
    ("plan", {**JOB, "gpus": None, "cluster": "{}/cluster.toml"}),
    ("plan", {**JOB, "gpus": None, "cluster": {"pools": [{"gpu": "{}/gpu.toml", "count": 8}]}}),
    ("plan", {**JOB, "rules": "{}/my.rules"}),
    ("plan", {**JOB, "rules": ["$gpu == {}/gpu.toml"]}),
    ("plan", {**JOB, "stack": "{}/stack"}),
    ("plan", {**JOB, "price": {"{}/gpu.toml": 2}}),
    ("predict", {"plan": "{}/plan.json"}),
    ("export", {"plan": {"plans": []}, "to": "{}/target"}),
    ("import", {"text": "source {}/env.sh\npython train.py --num-layers 4"}),
    ("import", {"text": "deepspeed train.py --deepspeed {}/ds.json", "gpus": "h100:8"}),
    ("import", {"text": "torchrun x --job.config_file {}/t.toml", "gpus": "h100:8"}),
)


@each_case("asked", PATHS)
def test_no_path_is_ever_read(
    asked: tuple[str, dict[str, Any]], client: TestClient, tmp_path: Path
) -> None:
    """A file that is there is refused as one that is not, in the same words."""
    name, words = asked
    texts = {
        "gpu.toml": astra.find_gpu("h100")[0].name,
        "config.json": '{"model_type": "llama", "hidden_size": 64}',
        "plan.json": "{}",
        "env.sh": "SECRET=1",
        "ds.json": "{}",
        "t.toml": "",
        "my.rules": "$tp > 1",
        "cluster.toml": "",
    }
    there, gone = tmp_path / "there", tmp_path / "gones"
    there.mkdir(exist_ok=True)
    for file, text in texts.items():
        (there / file).write_text(text)
    said = []
    for folder in (there, gone):
        body = json.dumps(words).replace("{}/", f"{folder}/").replace('"{}"', f'"{folder}"')
        refused = client.post(f"/api/{name}", content=body, headers=JSON)
        assert refused.status_code == 422
        said.append(refused.text.replace(str(folder), "").replace("SECRET", ""))
    assert said[0] == said[1]


def test_an_answer_whose_rules_lie_in_a_file_is_refused(
    client: TestClient, planned: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "my.rules").write_text("$tp > 1")
    request = {**planned["request"], "rules": str(tmp_path / "my.rules")}
    asked = {"plan": {**planned, "request": request}, "quick": True}
    refused = client.post("/api/explain", json=asked)
    assert refused.status_code == 422 and "rule_texts" in refused.json()["error"]["message"]
    own = {**planned["request"], "rules": None, "rule_texts": ["$tp > 1"]}
    asked = {"plan": {**planned, "request": own}, "quick": True}
    assert client.post("/api/explain", json=asked).status_code == 200


def test_only_this_server_s_names_and_pages_may_ask(client: TestClient) -> None:
    ask = "/api/stacks"
    for host in ("evil.example", "127.0.0.1.evil.example:8400", "", "169.254.1.1"):
        assert client.get(ask, headers={"host": host}).status_code == 421
    for host in ("localhost", "localhost:8400", "127.0.0.1:8400", "[::1]:8400"):
        assert client.get(ask, headers={"host": host}).status_code == 200
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:9999",
        "https://127.0.0.1:8400",
    ):
        assert client.get(ask, headers={"origin": origin}).status_code == 403
    assert client.get(ask, headers={"origin": ADDRESS}).status_code == 200


def test_every_answer_has_the_policy(client: TestClient) -> None:
    for answer in (
        client.get("/api/stacks"),
        client.get("/nowhere"),
        client.get("/api/stacks", headers={"host": "evil.example"}),
        client.post("/api/plan", content=b"x"),
    ):
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


def test_bodies_that_are_too_large_or_no_json_are_refused(client: TestClient) -> None:
    large = b'{"model": "' + b"x" * MOST_BODY_BYTES + b'"}'
    assert client.post("/api/plan", content=large, headers=JSON).status_code == 413
    assert client.post("/api/plan", content=b"model=x").status_code == 415
    for body in (b"", b"{", b"[]", b"[" * 100_000, b'{"model": "\xff"}', b'{"top": NaN}'):
        refused = client.post("/api/plan", content=body, headers=JSON)
        assert refused.status_code == 422 and refused.json()["error"]["message"]


def events_of(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_a_stream_tells_the_best_so_far_and_ends_with_the_answer(client: TestClient) -> None:
    asked = {**JOB, "gpus": "h100:16"}
    stream = client.post("/api/plan", json=asked, headers={"accept": "text/event-stream"})
    assert stream.headers["content-type"].startswith("text/event-stream")
    events = events_of(stream.text)
    names = [name for name, _ in events]
    assert names[0] == "started" and names[-1] == "done"
    assert set(names[1:-1]) <= {"best", "progress"} and "best" in names
    best = [data["best_step_s"] for name, data in events if name == "best"]
    assert best == sorted(best, reverse=True)
    plain = client.post("/api/plan", json=asked).json()
    assert without_seconds(events[-1][1]) == without_seconds(plain)
    refused = client.post(
        "/api/plan", json={**JOB, "top": 0}, headers={"accept": "text/event-stream"}
    )
    assert refused.status_code == 422  # before a stream begins


def test_the_time_limit_ends_a_search_with_the_best_so_far(client: TestClient) -> None:
    found = client.post("/api/plan", json={**LONG, "time_limit": 2}).json()
    assert found["search"]["status"] == "time_limit" and found["plans"]


class Served:
    """`astra serve` as a process of its own."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = (sys.executable, "-m", "astra", "serve", "--port", str(self.port), *options)
        self.process = subprocess.Popen(command)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.1)
        raise AssertionError("the server did not start")

    def ask(self, path: str, body: dict[str, Any], accept: str = "*/*") -> socket.socket:
        """A question whose answer is not waited for."""
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\naccept: {accept}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        )
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(head.encode() + text)
        return connection

    def children(self) -> set[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return set(map(int, listed.split()))


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served("--workers", "1", "--time-limit", "120")
    with server.ask("/api/predict", JOB) as ready:
        assert ready.recv(12) == b"HTTP/1.1 200"
    yield server
    if server.process.poll() is None:
        server.process.kill()
    server.process.wait()


def is_searching(process: int) -> bool:
    """Whether it has used the processor for a while since it was last asked."""
    before = cpu_s(process)
    time.sleep(0.5)
    return cpu_s(process) - before > 0.1


def cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(what: Any) -> None:
    until = time.monotonic() + 30
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_gone(process: int) -> bool:
    """Whether it has ended; one that nobody has asked for yet counts as ended."""
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
@each_case("accept", ("application/json", "text/event-stream"))
def test_a_client_that_goes_ends_its_search(accept: str, served: Served) -> None:
    connection = served.ask("/api/plan", LONG, accept)
    (worker,) = served.children()
    wait_for(lambda: is_searching(worker))
    connection.close()
    wait_for(lambda: is_gone(worker))
    wait_for(lambda: len(served.children()) == 1)  # another has taken its place
    with served.ask("/api/predict", JOB) as again:
        assert again.recv(12) == b"HTTP/1.1 200"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT, signal.SIGKILL))
def test_stopping_the_server_ends_every_search(number: int, served: Served) -> None:
    with served.ask("/api/plan", LONG):
        (worker,) = served.children()
        wait_for(lambda: is_searching(worker))
        served.process.send_signal(number)
        assert served.process.wait(10) == (-9 if number == signal.SIGKILL else 130)
        wait_for(lambda: is_gone(worker))


def test_stop_asks_for_the_best_so_far(served: Served) -> None:
    with served.ask("/api/plan", LONG, "text/event-stream") as stream:
        text = b""
        while b"event: best" not in text:
            text += stream.recv(65536)
        name = json.loads(text.split(b"data: ")[1].split(b"\n")[0])["search"]
        with served.ask("/api/stop", {"search": name}) as stop:
            assert stop.recv(12) == b"HTTP/1.1 200"
        while b"event: done" not in text or not text.rstrip().endswith(b"0"):
            text += stream.recv(1 << 20)
    assert b'"status":"cancelled"' in text
    with served.ask("/api/stop", {"search": name}) as stop:
        assert stop.recv(12) == b"HTTP/1.1 404"


def test_beyond_the_limit_questions_are_told_to_come_again() -> None:
    app = make_app(workers=1, time_limit_s=3.0, most_waiting=0)
    with TestClient(app, base_url=ADDRESS) as client:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(client.post, "/api/plan", json=LONG) for _ in range(4)]
            answers = [each.result() for each in asked]
        assert sorted(answer.status_code for answer in answers) == [200, 429, 429, 429]
        assert all(a.headers["retry-after"] == "1" for a in answers if a.status_code == 429)
        assert client.get("/api/stacks").status_code == 200


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for command, extra, module in (("serve", "web", "uvicorn"), ("mcp", "mcp", "mcp")):
        for name in [name for name in sys.modules if name.startswith(("astra.web", module))]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(astra.InputError, match=rf"pip install 'astra-planner\[{extra}\]'"):
            run([command])
