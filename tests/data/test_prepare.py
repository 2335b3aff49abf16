"""The whole way: what makes two folders the same, going on after a crash, and what is refused."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from dape.data import job
from dape.data.documents import Document, Position
from dape.data.prepare import Options, prepare
from dape.data.shards import ShardWriter
from dape.data.split import Split
from dape.data.store import Corpus
from dape.data.text import Text
from dape.errors import UsageError

# The hash ------------------------------------------------------------------------------------------------------------


def test_hash_is_of_the_content(prepared, texts, tmp_path):
    first = prepared("a")
    assert prepared("docs.jsonl", out="same").hash == first.hash  # the same documents in the same order
    assert prepared("docs.jsonl", out="bpe", tokenizer="bpe:300").hash != first.hash
    assert prepared("docs.jsonl", out="share", validation_share=0.5).hash != first.hash
    (tmp_path / "a/00.txt").write_text("changed")
    assert prepared("a", out="changed").hash != first.hash


def test_manifest_tells_where_it_comes_from(prepared, texts, tmp_path):
    (tmp_path / "a/x.md").write_bytes(b"broken \xff\xff")
    (tmp_path / "a/y.md").write_bytes(b"")
    (tmp_path / "a/z.md").write_bytes(b"\0")
    (tmp_path / "a/z.png").write_bytes(b"\0")
    manifest = prepared("a", "docs.jsonl", shard_tokens=1000).manifest
    assert manifest["name"] == "a+1" and manifest["tokenizer"]["name"] == "bytes"
    assert [source["files"] for source in manifest["sources"]] == [63, 1]
    assert manifest["sources"][1]["bytes"] == (tmp_path / "docs.jsonl").stat().st_size
    size = 2 * sum(len(t.encode()) for t in texts) + len("broken \ufffd\ufffd".encode())
    assert manifest["counts"] == {
        "documents": 121,
        "tokens": size + 121,
        "bytes": size,
        "replaced_characters": 2,
        "duplicate_documents": 60,
        "documents_in_both_parts": 0,
        "skipped_empty": 1,
        "skipped_binary": 1,
        "skipped_other_files": 1,
    }
    for part in ("train", "validation"):
        shards = manifest[part]["shards"]
        assert sum(shard["tokens"] for shard in shards) == manifest[part]["tokens"]
        assert all(shard["tokens"] == 1000 for shard in shards[:-1])
    assert manifest["train"]["bytes"] + manifest["validation"]["bytes"] == size


def test_shards_that_come_out_even(prepared, tmp_path):
    (tmp_path / "x.txt").write_text("a" * 19)
    (tmp_path / "v.txt").write_text("a" * 5)
    corpus = prepared("x.txt", validation=(str(tmp_path / "v.txt"),), shard_tokens=10)
    assert [shard["tokens"] for shard in corpus.manifest["train"]["shards"]] == [10, 10]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "tokenizer.json",
        "train-00000.bin",
        "train-00001.bin",
        "train-documents.npy",
        "validation-00000.bin",
        "validation-documents.npy",
    ]


# Again ---------------------------------------------------------------------------------------------------------------


def test_again_with_the_same_settings_nothing_is_done(texts, tmp_path, contents, monkeypatch):
    arguments = [str(tmp_path / "a")], tmp_path / "out", Options()
    assert prepare(*arguments).how == "new"
    before = contents(tmp_path / "out")
    monkeypatch.setattr("dape.data.prepare.Job", None)  # must not be needed
    assert prepare(*arguments).how == "already there"
    monkeypatch.chdir(tmp_path)
    assert prepare(["a"], "out", Options()).how == "already there"  # the same, named otherwise
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tokenizer": "bpe:300"}, "tokenizer bytes instead of bpe:300"),
        ({"validation_share": 0.1}, "validation share 0.05 instead of 0.1"),
        ({"strict": True}, "strict False instead of True"),
        ({"shard_tokens": 7}, "shard tokens 67108864 instead of 7"),
        ({"text_field": "body"}, "text field text instead of body"),
        ({"validation": ("docs.jsonl",)}, "other `validation` sources"),
        ({"source": "docs.jsonl"}, "other sources"),
        ({"touch": True}, "or they have changed since"),
    ],
    ids=str,
)
def test_folders_are_never_mixed(prepared, texts, tmp_path, contents, monkeypatch, options, told):
    monkeypatch.chdir(tmp_path)
    prepared("a")
    before = contents(tmp_path / "out")
    if options.pop("touch", False):
        os.utime("a/07.txt", (1, 1))
    with pytest.raises(UsageError, match=rf"out is there already, made with .*{told}.*`overwrite`"):
        prepared(options.pop("source", "a"), **options)
    assert contents(tmp_path / "out") == before and not list(tmp_path.glob(".*"))


def test_overwriting_is_possible_when_asked_for(prepared, texts, tmp_path, contents):
    prepared("a", shard_tokens=100)
    prepared("docs.jsonl", out="other")
    prepared("docs.jsonl", overwrite=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "other")
    assert not list(tmp_path.glob(".*"))


def test_folders_with_other_things_are_left_alone(prepared, texts, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").touch()
    with pytest.raises(UsageError, match="is a folder with other things in it"):
        prepared("a", overwrite=True)
    assert (tmp_path / "out/thesis.txt").exists()
    (tmp_path / "out/thesis.txt").unlink()
    prepared("a")  # an empty folder is no obstacle


def test_impossible_outputs(prepared, texts, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"`out` .*is a file"):
        prepared("a", out="file")
    with pytest.raises(UsageError, match=r"`out` .*file, not a folder"):
        prepared("a", out="file/deeper")

    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.touch", forbidden)  # root may write anywhere
    with pytest.raises(UsageError, match=r"`out` .*cannot create files in .*Permission denied"):
        prepared("a")


@pytest.mark.parametrize(
    "options", [{"validation_share": 0}, {"validation_share": 1}, {"shard_tokens": 0}, {"tokenizer": "bp"}]
)
def test_impossible_options(prepared, texts, tmp_path, options):
    (flag,) = options
    with pytest.raises(UsageError, match=f"`{flag}`"):
        prepared("a", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "docs.jsonl"]


# Little by little ----------------------------------------------------------------------------------------------------


def test_documents_are_pulled_as_they_are_needed(monkeypatch):
    monkeypatch.setattr(job, "BATCH_DOCUMENTS", 3)
    pulled = []

    def source():
        for size in (10, 10, 10, 10, 200, 10):
            pulled.append(size)
            yield Document(Text.of("a" * size), 0, "train", Position(0, len(pulled)))

    found = job.batches(source(), Split("given", 0), Position(1, 0), limit=100)
    assert pulled == []
    seen = []
    for batch, position in found:
        seen.append((len(batch), position, len(pulled)))
    assert seen == [(3, (0, 3), 3), (2, (0, 5), 5), (1, (1, 0), 6)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of its memory where Linux tells it")
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Six times the text, the same peak: in processes of their own, as a peak never goes down."""
    script = textwrap.dedent("""
        import re, sys
        from pathlib import Path
        from dape.data.prepare import Options, prepare
        prepare([sys.argv[1]], Path(sys.argv[2]), Options())
        print(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
    """)
    peaks = {}
    for lines in (600, 3600):  # 6 and 36 MB; a batch is 4 MB
        with (tmp_path / f"{lines}.jsonl").open("w") as file:
            file.writelines(json.dumps({"text": f"{i} some words of" * 700}) + "\n" for i in range(lines))
        argv = [sys.executable, "-c", script, str(tmp_path / f"{lines}.jsonl"), str(tmp_path / f"out{lines}")]
        peaks[lines] = int(subprocess.check_output(argv))
    assert peaks[3600] - peaks[600] < 12_000


# Crashes -------------------------------------------------------------------------------------------------------------

KILLED = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    from dape.data import job
    from dape.data.prepare import Options, prepare

    source, out, die_at, tokenizer = sys.argv[1:]
    os.fsync = lambda handle: None  # slow, and against power cuts only
    events = 0

    def count(event, arguments):
        # Everything that changes the disk, and opening files to read besides.
        global events
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            if str(Path(out).parent) in str(arguments[0]):
                events += 1
                if die_at in (str(events), f"{event} {Path(arguments[0]).name}"):
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    prepare([source], Path(out), Options(tokenizer=tokenizer, shard_tokens=400, overwrite=True))
    print(events)
""")


@pytest.fixture
def run_and_kill(tmp_path):
    """Prepare in another process, killed before its n-th dealing with a file, or before a certain one."""

    def run(source, out, die_at, tokenizer="bytes"):
        argv = [sys.executable, "-c", KILLED, str(tmp_path / source), str(tmp_path / out), str(die_at), tokenizer]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return int(done.stdout) if done.returncode == 0 else None

    return run


@pytest.mark.parametrize(
    ("source", "tokenizer", "deaths"), [("a", "bytes", (40, 85, 60)), ("docs.jsonl", "bpe:280", (9, 48, 40))]
)
def test_killed_again_and_again_it_arrives_at_the_same(
    texts, tmp_path, contents, run_and_kill, source, tokenizer, deaths
):
    positions = []
    for die_at in deaths:
        assert run_and_kill(source, "out", die_at, tokenizer) is None
        assert not (tmp_path / "out").exists()
        notes = tmp_path / ".out.partial/progress.json"
        positions.append(json.loads(notes.read_text())["position"] if notes.exists() else [0, 0])
    assert [0, 0] < positions[1] < positions[2]
    options = Options(tokenizer=tokenizer, shard_tokens=400)
    assert prepare([str(tmp_path / source)], tmp_path / "out", options).how == "continued"
    prepare([str(tmp_path / source)], tmp_path / "whole", options)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "docs.jsonl", "out", "whole"]


@pytest.mark.parametrize(
    "die_at", ["open train-documents.npy", "os.remove progress.json", "os.rename out", "os.rename .out.partial"]
)
def test_killed_at_the_very_end_it_arrives_too(texts, tmp_path, contents, run_and_kill, die_at):
    """The folder is complete, and about to take the place of an older one."""
    (tmp_path / "a/zz.txt").touch()  # nothing in it, and yet it must be counted only once
    settings = Options(shard_tokens=400, overwrite=True)
    prepare([str(tmp_path / "docs.jsonl")], tmp_path / "out", Options())
    prepare([str(tmp_path / "a")], tmp_path / "whole", settings)
    assert run_and_kill("a", "out", die_at) is None
    assert prepare([str(tmp_path / "a")], tmp_path / "out", settings).how == "continued"
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not list(tmp_path.glob(".*"))


def test_the_older_folder_is_removed_even_after_a_crash(prepared, texts, tmp_path):
    prepared("a")
    (tmp_path / "out").rename(tmp_path / ".out.old")  # as after a crash between renaming and removing
    prepared("a")
    assert not list(tmp_path.glob(".*"))
    (tmp_path / ".out.old").mkdir()
    prepared("a")
    assert not list(tmp_path.glob(".*"))


def stop_after(monkeypatch, documents, error):
    """Let writing fail after so many documents."""
    real, calls = ShardWriter.end, []

    def end(self, *arguments):
        calls.append(self)
        if len(calls) > documents:
            raise error
        real(self, *arguments)

    monkeypatch.setattr(job, "BATCH_DOCUMENTS", 3)  # notes are taken in between
    monkeypatch.setattr(ShardWriter, "end", end)


def test_an_unfinished_folder_of_another_kind_is_refused(prepared, texts, tmp_path, contents, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 30, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepared("a", shard_tokens=400)
    left = contents(tmp_path / ".out.partial")
    assert "train-00000.bin" in left
    with pytest.raises(UsageError, match=r"unfinished folder .*\.out\.partial is there, made with shard tokens 400"):
        prepared("a", shard_tokens=500)
    assert contents(tmp_path / ".out.partial") == left
    corpus = prepared("a", shard_tokens=500, overwrite=True)
    prepared("a", shard_tokens=500, out="whole")
    assert contents(corpus.folder) == contents(tmp_path / "whole")


def test_nothing_worth_keeping_leaves_nothing(prepared, texts, tmp_path, monkeypatch):
    stop_after(monkeypatch, 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prepared("a")
    assert not list(tmp_path.glob(".*"))


def test_a_tokenizer_is_learned_once(prepared, texts, tmp_path, contents, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 0, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepared("a", tokenizer="bpe:270")
    with monkeypatch.context() as patch:
        patch.setattr(job, "train_bpe", None)  # must not be needed
        prepared("a", tokenizer="bpe:270")
    prepared("a", tokenizer="bpe:270", out="whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_an_unfinished_folder_without_tokens_is_no_obstacle(prepared, texts, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 0, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepared("a", tokenizer="bpe:270")
    assert (tmp_path / ".out.partial").exists()
    assert prepared("a").tokenizer.name == "bytes" and not (tmp_path / ".out.partial").exists()


def test_a_full_disk_is_explained_and_can_be_gone_on_from(prepared, texts, tmp_path, contents, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 30, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(OSError, match=r"the disk of .* is full.*same command goes on"):
            prepared("a", shard_tokens=400)
    assert prepare([str(tmp_path / "a")], tmp_path / "out", Options(shard_tokens=400)).how == "continued"
    prepared("a", shard_tokens=400, out="whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_other_failures_of_the_disk_are_passed_on(prepared, texts, monkeypatch):
    stop_after(monkeypatch, 30, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        prepared("a")


def test_shards_that_have_vanished_are_noticed(prepared, texts, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 30, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepared("a", shard_tokens=400)
    (tmp_path / ".out.partial/train.ends").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train.ends: has been shortened; remove the folder .*\.out\.partial"):
        prepared("a", shard_tokens=400)


def test_two_at_a_time_are_refused(prepared, texts, tmp_path, monkeypatch):
    """The second comes while the first is in the middle of its work."""
    real = job.Job.run
    refused = []

    def run(self):
        with monkeypatch.context() as patch:
            patch.setattr(job.Job, "run", real)
            with pytest.raises(UsageError, match="another process is writing"):
                prepared("a")
            refused.append(True)
        return real(self)

    monkeypatch.setattr(job.Job, "run", run)
    assert isinstance(prepared("a"), Corpus) and refused


def test_who_comes_second_may_wait(texts, tmp_path, monkeypatch, capsys):
    """As two commands do that are given the same new text, which each would keep in the cache."""
    monkeypatch.chdir(tmp_path)
    real, second, seen = job.Job.run, [], []

    def run(self):
        monkeypatch.setattr(job.Job, "run", real)
        waiting = threading.Thread(
            target=lambda: second.append(prepare(["a"], Path("out"), Options(), wait=True)), daemon=True
        )
        waiting.start()
        waiting.join(0.3)
        seen.extend([waiting, waiting.is_alive()])
        return real(self)

    monkeypatch.setattr(job.Job, "run", run)
    first = prepare(["a"], Path("out"), Options())
    seen[0].join(30)
    assert seen[1] and first.how == "new" and [each.how for each in second] == ["already there"]
    assert second[0].corpus.hash == first.corpus.hash
    assert "another process is preparing the same text; waiting" in capsys.readouterr().err


# Writers -------------------------------------------------------------------------------------------------------------


def test_a_writer_goes_on_from_any_state(tmp_path, contents):
    """Whatever is written after a state was noted is dropped when a writer is made from it."""
    generator = np.random.default_rng(0)
    documents = [generator.integers(0, 256, size) for size in (3, 0, 12, 1, 7, 30, 2)]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()

    def writer(folder, state=None):
        return ShardWriter(folder, "train", np.dtype("<u2"), 10, state)

    def append(to, numbers):
        for number in numbers:
            to.add(documents[number])
            to.end(256, bytes([number]) * 32, number)

    steady = writer(whole)
    append(steady, range(7))
    expected = steady.finish()
    for kept in range(8):
        first = writer(stopped)
        append(first, range(kept))
        first.sync()
        state = json.loads(json.dumps(first.state()))
        append(first, [5] * 3)
        first.close()
        second = writer(stopped, state)
        append(second, range(kept, 7))
        assert second.finish() == expected
        assert {k: v for k, v in contents(stopped).items() if k in contents(whole)} == contents(whole)


def test_the_number_of_workers_changes_nothing(prepared, texts, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "")  # put back afterwards
    folders = [prepared("a", out=f"w{n}", tokenizer="bpe:300", workers=n).folder for n in (1, 3)]
    assert os.environ["RAYON_NUM_THREADS"] == "3"
    one, three = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert one == three and len(one) > 4
    with pytest.raises(UsageError, match="`workers` must lie between 1 and"):
        prepared("a", out="w0", workers=0)
