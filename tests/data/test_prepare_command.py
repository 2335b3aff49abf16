"""``dape prepare`` as it is typed: what is printed, and with which code it ends."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from dape.actions.prepare import PrepareProgress, summary
from dape.cli import app
from dape.cli.commands import Command
from dape.cli.prepare import Prepare, prepare
from dape.data import verify
from dape.data.documents import Tally
from dape.data.shards import ShardWriter
from dape.data.store import Corpus
from dape.reading import sealed


@pytest.fixture
def dape(monkeypatch, tmp_path, capsys):
    """Run ``dape prepare`` in ``tmp_path``: exit code, standard output and standard error."""
    monkeypatch.setattr(app, "COMMANDS", [Command("prepare", Prepare, prepare, examples={})])
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        code = app.main(["prepare", *argv])
        return code, *capsys.readouterr()

    return run


def test_summary_says_what_was_made_and_what_comes_next(dape, texts, tmp_path, monkeypatch):
    code, out, err = dape("a", "--out", "my data", "--validation-share", "0.1")
    corpus = Corpus.open(tmp_path / "my data")
    share = len(corpus.validation) / (len(corpus.train) + len(corpus.validation))
    assert code == 0
    lines = out.splitlines()
    assert re.fullmatch(r"speed       \d+\.\d MB/s of text, \d+\.\d s in all", lines.pop(5))
    assert lines == [
        "my data made",
        f"documents   60 ({sum(len(t.encode()) for t in texts) / 1000:.1f} kB of text)",
        f"tokens      {len(corpus.train):,} to train on, {len(corpus.validation):,} held out; bytes, 257 ids",
        f"held out    {len(corpus.validation.document_ends)} of 60 documents by content, "
        f"{len(corpus.validation):,} tokens ({share:.1%})",
        f"hash        {corpus.hash[:16]}",
        "next        dape compare --data 'my data'",
    ]
    assert err.splitlines() == ["looking at the documents", "encoding"]
    code, out, err = dape("a", "--out", "my data", "--validation-share", "0.1")
    assert code == 0 and out.startswith("my data already exists, with the same settings\n") and not err
    assert "\nnext " in out
    monkeypatch.setenv("DAPE_VERBOSITY", "quiet")
    assert "next" not in dape("a", "--out", "my data", "--validation-share", "0.1")[1]


def test_check_reads_everything(dape, texts, tmp_path, monkeypatch):
    """Also what opening does not look at in large files: here all but the first and the last block of each."""
    dape("a", "--out", "out")
    assert dape("--check", "out")[0] == 0
    code, out, _ = dape("--check", "out")
    corpus = Corpus.open(tmp_path / "out")
    tokens = len(corpus.train) + len(corpus.validation)
    assert code == 0 and out == f"out is whole: {tokens:,} tokens, hash {corpus.hash[:16]}, all checksums agree\n"
    monkeypatch.setattr(verify, "WHOLE", 0)
    monkeypatch.setattr(verify, "SAMPLES", 2)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    manifest["train"]["shards"][0].pop("blocks")  # an older folder
    (tmp_path / "out/manifest.json").write_text(json.dumps(sealed(manifest)))
    shard = tmp_path / "out/train-00000.bin"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    Corpus.open(tmp_path / "out")
    code, out, err = dape("--check", "out")
    assert code == 1 and not out
    assert err.startswith("dape: out/train-00000.bin: damaged, it is not what was written (checksums differ: expected ")
    for argv, words in ((["a", "--check", "out"], "leave out SOURCE and --out"), (["a"], "--out is missing")):
        code, _, err = dape(*argv)
        assert code == 2 and words in err


def test_summary_tells_what_is_unusual(dape, tmp_path):
    (tmp_path / "f").mkdir()
    for name, data in {"a.txt": b"x\xff" * 500, "b.txt": b"", "c.txt": b"\0", "d.png": b""}.items():
        (tmp_path / "f" / name).write_bytes(data)
    code, out, _ = dape("f", "--out", "out")
    assert code == 0
    for remark in (
        "500 broken characters replaced",
        "1 empty ones left out",
        "1 binary files",
        "1 files with other names",
    ):
        assert remark in out
    assert "held out    the end of the text, " in out and "too few documents" in out


def test_a_share_far_from_the_one_asked_for_is_pointed_out(dape, texts, tmp_path):
    (tmp_path / "a/large.txt").write_text("large " * 100_000)
    _, out, _ = dape("a", "--out", "out", "--validation-share", "0.2")
    assert "of the tokens are held out, 20.0% were asked for: few documents decide what is measured" in out


def test_a_document_that_is_most_of_what_is_held_out_is_pointed_out(dape, texts, tmp_path):
    """Found by trying: the file is held out."""
    (tmp_path / "a/large.txt").write_text("lorem " * 1_000)
    found = [dape("a", "--out", f"out{share}", "--validation-share", str(share))[1] for share in (0.1, 0.3, 0.6, 0.9)]
    assert any(
        "held-out documents is" in out and "% of their tokens: few documents decide" in out for out in found
    ) and not all("held-out documents is" in out for out in found)


def test_every_option_arrives(dape, texts, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"body": "some text"}\n')
    options = "--tokenizer bpe:260 --text-field body --strict --shard-tokens 9 --validation a/01.txt a/02.txt"
    assert dape("x.jsonl", "--out", "out", *options.split())[0] == 0
    manifest = Corpus.open(tmp_path / "out").manifest
    expected = {"tokenizer": "bpe:260", "text_field": "body", "strict": True, "shard_tokens": 9}
    assert {key: manifest["settings"][key] for key in expected} == expected
    assert manifest["split"] == "given" and manifest["validation"]["documents"] == 2
    code, _, err = dape("x.jsonl", "--out", "out", "--text-field", "body")
    assert code == 2 and "tokenizer bpe:260 instead of bytes" in err
    code, out, _ = dape("x.jsonl", "--out", "out", "--text-field", "body", "--overwrite")
    assert code == 0 and out.startswith("out made")


def test_several_sources_and_standard_input(dape, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    code, out, _ = dape("a", "-", "docs.jsonl", "--out", "out")
    assert code == 0 and "documents   121 " in out
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ("--out out", 2, "nothing to prepare"),
        (
            "--out out --validation a docs.jsonl",
            2,
            "nothing to prepare: name a file, a folder, stdlib, sotu or hf:NAME, before",
        ),
        ("nowhere --out out", 2, "nowhere: no such file or folder"),
        ("a --out a", 2, "--out a: is a folder with other things in it"),
        ("a --out out --validation-share 2", 2, "--validation-share 2.0: must lie between 0 and 1"),
        ("a --out out --tokenizer nothing", 2, "--tokenizer nothing: neither"),
        ("empty.txt --out out", 2, "no documents"),
        ("binary --out out", 2, "binary: is a binary file"),
        ("broken.txt --out out --strict", 1, "broken.txt: broken UTF-8 at byte 3"),
        ("broken.jsonl --out out", 1, "broken.jsonl, line 1: not JSON"),
        ("broken.txt.gz --out out", 1, "broken.txt.gz: broken .gz file"),
        ("docs.jsonl --out out --text-field x", 2, "docs.jsonl, line 1: has no field 'x'; it has 'text'"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(dape, texts, tmp_path, argv, code, message):
    for name, data in {"empty.txt": b"", "binary": b"\0", "broken.txt": b"abc\xff", "broken.jsonl": b"{"}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "broken.txt.gz").write_bytes(b"abc")
    found, out, err = dape(*argv.split())
    assert (found, out) == (code, "")
    assert f"dape: {message}" in err and "Traceback" not in err
    assert not list(tmp_path.glob(".*")) and not (tmp_path / "out").exists()


def test_a_full_disk_ends_with_1(dape, texts, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ShardWriter, "end", full)
    code, _, err = dape("a", "--out", "out")
    assert code == 1 and "is full. Free some space; the same command goes on" in err


def test_interrupted_it_says_how_to_go_on(texts, tmp_path):
    """A real Ctrl-C, in the middle of encoding."""
    script = textwrap.dedent("""
        import sys, time
        from dape.cli import main
        from dape.data import job

        real = job.encode
        def slow(*arguments):
            print("ready", flush=True)
            real(*arguments)
            time.sleep(60)
            return True
        job.encode = slow
        sys.exit(main(["prepare", sys.argv[1], "--out", sys.argv[2]]))
    """)
    argv = [sys.executable, "-c", script, str(tmp_path / "a"), str(tmp_path / "out")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        err = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert (
        err.endswith("dape: interrupted; the same command continues where this one stopped\n")
        and "Traceback" not in err
    )


def test_help_and_parsing_need_no_numpy():
    code = "import sys, dape.cli.prepare; sys.exit(any(m in sys.modules for m in ('numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_progress_in_lines_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(PrepareProgress, "SECONDS_BETWEEN_LINES", 0)
    with PrepareProgress() as progress:
        progress.begin("encoding", 100)
        progress.update(Tally(documents=1200, bytes=2_500_000))
        progress._begun -= 10
        progress.update(Tally(documents=2400, bytes=22_500_000))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["encoding", "encoding: 1,200 documents, 2.5 MB"]
    assert lines[2].startswith("encoding: 2,400 documents, 22.5 MB, 2.0 MB/s")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (12_345_678, "12.3 MB")]
)
def test_sizes_are_readable(size, text):
    from dape.actions.prepare import _size

    assert _size(size) == text
    assert _size(7 * 10**15) == "7000.0 TB"


def test_summary_is_made_of_the_corpus(prepared, texts, tmp_path):
    from dape.data.prepare import Prepared

    corpus = prepared("a", validation=(str(tmp_path / "docs.jsonl"),))
    lines = summary(Prepared(corpus, "continued"), tmp_path / "out")
    assert lines[0].endswith("out finished") and "held out    the sources given as `validation`" in lines[3]
    assert "60 duplicates, 60 both to train on and held out" in lines[1]


def test_the_function_makes_what_the_command_makes(dape, texts, tmp_path):
    from dape.actions.prepare import check, prepare

    dape("a", "--out", "typed", "--validation-share", "0.1")
    called = prepare(tmp_path / "a", out=tmp_path / "called", validation_share=0.1)
    assert called.how == "new" and called.corpus.hash == check(tmp_path / "typed").hash
    assert prepare([str(tmp_path / "a")], out=tmp_path / "called", validation_share=0.1).how == "already there"
    with pytest.raises(TypeError, match="validation_part"):
        prepare("a", out="other", validation_part=0.1)
    with pytest.raises(ValueError, match="nothing to prepare"):
        prepare([], out="other")
