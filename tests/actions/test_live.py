"""``dape report --live``: what is served, what is not, and that rows and progress arrive."""

import http.client
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from dape.actions.live import serve
from dape.cli import main
from dape.errors import UsageError

pytest.importorskip("vl_convert", reason="pip install 'dape[report]'")
ROW = {
    "run": "rope-seed0", "method": "rope", "seed": 0, "train_length": 64, "length": 128, "metric": "perplexity",
    "value": 7.5, "scored_tokens": 10, "protocol": "last_k", "data_hash": "abc",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    run = tmp_path / "grid/runs/rope-seed0"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("model:\n  encoding: rope\ntrain:\n  steps: 20\n")
    (run / "metrics.jsonl").write_text('{"step": 5, "loss": 3.25}\n')
    return tmp_path / "grid"


@pytest.fixture
def ask(folder, monkeypatch):
    monkeypatch.setattr("dape.actions.live.FRESH_SECONDS", 0.0)
    server = serve(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()

    def ask(path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body, dict(answer.getheaders())

    setattr(ask, "server", server)  # noqa: B010  (types know no attributes of functions)
    yield ask
    server.shutdown()
    server.server_close()


def test_the_page_and_the_state(ask, folder):
    assert ask.server.server_address[0] == "127.0.0.1"
    code, page, headers = ask("/")
    assert code == 200 and "No rows yet" in page and "connect-src 'self'" in page
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    first = json.loads(ask("/state")[1])
    assert first["said"] == "0 of 1 run finished, 0 rows"
    assert first["runs"] == [
        {"name": "rope-seed0", "state": "running", "doing": "step 5 of 20, loss 3.250", "done": 0.25}
    ]

    (folder / "runs/rope-seed0/tested.jsonl").write_text(json.dumps(ROW) + "\n")  # while the run is still tested
    (folder / "runs/rope-seed0/progress.json").write_text('{"length": 256}')
    second = json.loads(ask("/state")[1])
    assert second["version"] != first["version"] and second["said"].endswith("1 row")
    assert second["runs"][0]["doing"] == "testing length 256"
    assert "7.50" in ask("/")[1]

    shutil.copy(folder / "runs/rope-seed0/tested.jsonl", folder / "runs/rope-seed0/rows.jsonl")
    shutil.copy(folder / "runs/rope-seed0/tested.jsonl", folder / "results.jsonl")
    third = json.loads(ask("/state")[1])
    assert third["version"] != second["version"] and third["said"] == "1 of 1 run finished, 1 row"


@pytest.mark.parametrize(
    "path",
    ["/../secret.txt", "/..%2fsecret.txt", "//etc/passwd", "/results.jsonl", "/runs/", "/?x", "/state/", "/secret.txt"],
)
def test_nothing_else_is_served(ask, path):
    code, body, _ = ask(path)
    assert code == 404 and "secret" not in body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost", ""])
def test_foreign_names_are_refused(ask, host):
    for path in ("/", "/state"):
        assert ask(path, host=host)[0] == 403


def test_own_names_and_methods(ask):
    port = ask.server.server_port
    assert ask("/state", host=f"localhost:{port}")[0] == 200
    code, body, headers = ask("/", method="HEAD")
    assert code == 200 and body == "" and int(headers["Content-Length"]) > 1000
    assert ask("/", method="POST")[0] == ask("/", method="PUT")[0] == 501


def test_links_out_of_the_folder_are_not_read(ask, folder, tmp_path):
    secret = {**ROW, "method": "kerple", "run": "secret", "value": 3.21}
    (tmp_path / "other.jsonl").write_text(json.dumps(secret) + "\n")
    (tmp_path / "about.md").write_text("# secret title\n\nsecret words\n")
    (folder / "inner").mkdir()
    os.symlink(tmp_path / "other.jsonl", folder / "inner/results.jsonl")
    (folder / "own").mkdir()
    (folder / "own/results.jsonl").write_text(json.dumps(ROW) + "\n")
    os.symlink(tmp_path / "about.md", folder / "own/README.md")
    os.symlink(tmp_path / "other.jsonl", folder / "runs/rope-seed0/tested.jsonl")
    page = ask("/")[1]
    assert "3.21" not in page and "secret" not in page


def test_a_file_in_the_making_leaves_the_last_page(ask, folder):
    (folder / "results.jsonl").write_text(json.dumps(ROW) + "\n")
    assert "7.50" in ask("/")[1]
    (folder / "results.jsonl").write_text('{"run": "ro')
    assert ask("/")[0] == 200 and ask("/state")[0] == 200


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--live --out x.html", "--live writes nothing; omit --out"),
        ("--live --port 70000", "70000"),
        ("--port 8000", "--port is for --live"),
    ],
)
def test_flags_that_do_not_go_together(folder, capsys, argv, words):
    assert main(["report", str(folder), *argv.split()]) == 2
    assert words in capsys.readouterr().err


def test_a_port_in_use_and_no_folder(folder, ask, tmp_path):
    with pytest.raises(UsageError, match="cannot be used"):
        serve(folder, port=ask.server.server_port)
    with pytest.raises(UsageError, match="no such folder"):
        serve(tmp_path / "nix")
