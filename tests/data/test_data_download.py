"""Downloads from servers that misbehave, and archives from unknown sources."""

import errno
import gzip
import hashlib
import io
import os
import re
import stat
import struct
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from data_files import cifar10_files, cifar100_files, idx_bytes, idx_files, svhn_files
from foretaste.data import CATALOGUE, fetch, find_named, get, load
from foretaste.data.catalogue import DataSource, RemoteFile
from foretaste.data.fetch import Patience, download_file, unpack_archive

QUICK = Patience(timeout=20, tries=3, wait=0.01)  # a busy machine may answer late
BODY = np.random.default_rng(0).bytes(700_000)


@dataclass
class Behaviour:
    """What the server does, and the requests that came."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)  # bytes after which each next answer breaks off
    fail: list[int] = field(default_factory=list)  # status codes of the next answers
    stall: int = 0  # answers that stop in the middle without closing
    says_length: bool = True
    requests: list[str] = field(default_factory=list)
    url: str = ""
    over: threading.Event = field(default_factory=threading.Event)  # ends stalled answers


@pytest.fixture
def server(monkeypatch) -> Iterator[Behaviour]:
    monkeypatch.setenv("no_proxy", "*")
    does = Behaviour()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            does.requests.append(self.path)
            body = does.files.get(self.path)
            if does.fail or body is None:
                self.send_error(does.fail.pop(0) if does.fail else 404)
                return
            self.send_response(200)
            if does.says_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            stop = len(body)
            if does.cut_after:
                stop = does.cut_after.pop(0)
            elif does.stall:
                does.stall -= 1
                self.wfile.write(body[:1000])
                self.wfile.flush()
                does.over.wait(60)
                return
            self.wfile.write(body[:stop])

        def log_message(self, *args) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    does.url = f"http://127.0.0.1:{served.server_address[1]}"
    yield does
    does.over.set()
    served.shutdown()
    thread.join()
    served.server_close()


def wanted(server: Behaviour, name: str = "x.bin", body: bytes = BODY, mirrors: int = 1) -> RemoteFile:
    for k in range(mirrors):
        server.files[f"/{k}/{name}"] = body
    urls = tuple(f"{server.url}/{k}/{name}" for k in range(mirrors))
    return RemoteFile(name, urls, len(body), hashlib.md5(body, usedforsecurity=False).hexdigest())


def assert_came(path: Path, body: bytes = BODY) -> None:
    assert path.read_bytes() == body
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing else is left


def test_a_file_comes_whole_with_progress(server, tmp_path):
    seen = []
    path = download_file(wanted(server), tmp_path, progress=lambda *now: seen.append(now), patience=QUICK)
    assert_came(path)
    assert seen[-1] == ("x.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert server.requests == ["/0/x.bin"]


def test_a_connection_that_breaks_is_tried_again_and_nothing_is_left_of_it(server, tmp_path):
    server.cut_after = [100_000, 300_000]
    assert_came(download_file(wanted(server), tmp_path, patience=QUICK))
    assert len(server.requests) == 3
    server.cut_after = [200_000, 0, 0]
    with pytest.raises(ConnectionError, match=r"y.bin could not be fetched .*broke off before the end"):
        download_file(wanted(server, "y.bin"), tmp_path, patience=QUICK)
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_a_wrong_checksum_is_never_named_as_the_file(server, tmp_path):
    file = replace(wanted(server), md5="0" * 32)
    with pytest.raises(ConnectionError, match="its MD5 is not 000"):
        download_file(file, tmp_path, patience=QUICK)
    assert list(tmp_path.iterdir()) == []


def test_the_next_mirror_is_tried_after_404_a_wrong_file_or_a_wrong_length(server, tmp_path):
    file = wanted(server, mirrors=4)
    del server.files["/0/x.bin"]
    server.files["/1/x.bin"] = BODY[:-1] + b"?"
    server.files["/2/x.bin"] = b"<html>moved</html>"
    assert_came(download_file(file, tmp_path, patience=QUICK))
    assert server.requests == [f"/{k}/x.bin" for k in range(4)]


def test_all_mirrors_failing_are_all_named(server, tmp_path):
    file = wanted(server, mirrors=2)
    server.files.clear()
    with pytest.raises(ConnectionError, match=r"/0/x.bin: the server says 404 .*/1/x.bin: .*404.*by hand"):
        download_file(file, tmp_path, patience=QUICK)


def test_busy_servers_are_tried_again(server, tmp_path):
    server.fail = [503, 429]
    assert_came(download_file(wanted(server), tmp_path, patience=QUICK))
    server.fail = [500] * 9
    with pytest.raises(ConnectionError, match="the server says 500"):
        download_file(wanted(server, "y.bin"), tmp_path, patience=QUICK)


def test_a_stalled_server_is_left_and_asked_again(server, tmp_path):
    server.stall = 1
    # On a busy machine a second may pass without a byte more than once: there are tries for that.
    assert_came(download_file(wanted(server), tmp_path, patience=replace(QUICK, timeout=1, tries=8)))
    assert len(server.requests) > 1


def test_more_bytes_than_expected_are_not_taken(server, tmp_path):
    file = replace(wanted(server), size=1000)
    for server.says_length in (True, False):
        with pytest.raises(ConnectionError, match="sends more than the expected 1,000 bytes"):
            download_file(file, tmp_path, patience=QUICK)
    assert list(tmp_path.iterdir()) == []
    assert_came(download_file(wanted(server, "y.bin"), tmp_path / "y", patience=QUICK))


def test_no_network_says_so_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    pauses = []
    monkeypatch.setattr(fetch.time, "sleep", pauses.append)
    file = RemoteFile("x.bin", ("http://nowhere.invalid/x.bin",), 10, "0" * 32)
    with pytest.raises(ConnectionError, match=r"cannot be reached .*is there a network\?"):
        download_file(file, tmp_path, patience=Patience(wait=5))
    assert pauses == []  # not tried again


def test_a_full_disk_is_told_and_nothing_is_left(server, tmp_path, monkeypatch):
    def full(self, block) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch.BoundedDownload, "write", full)
    with pytest.raises(OSError, match=r"no space left on the disk of .*x.bin needs 700 kB"):
        download_file(wanted(server), tmp_path, patience=QUICK)
    assert len(server.requests) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_download_alone_imports_pooch():
    code = "import sys, foretaste.data; sys.exit('pooch' in sys.modules or 'requests' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return gzip.compress(head + array.tobytes())


@pytest.fixture
def toy_mnist(server, monkeypatch) -> Behaviour:
    """MNIST's names on our server, with a few points of noise."""
    rng = np.random.default_rng(0)
    files = []
    for part, n in (("train", 30), ("t10k", 20)):
        labels = np.arange(n, dtype=np.uint8) % 10
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        files += [
            wanted(server, f"{part}-images-idx3-ubyte.gz", idx(images)),
            wanted(server, f"{part}-labels-idx1-ubyte.gz", idx(labels)),
        ]
    monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], files=tuple(files)))
    return server


def test_get_puts_files_where_load_finds_them_and_a_second_call_does_nothing(toy_mnist, tmp_path):
    assert get("mnist", tmp_path, patience=QUICK) == tmp_path / "mnist"
    data = load("mnist", tmp_path)
    assert (len(data.pool), len(data.test), tuple(data.x.shape[1:])) == (30, 20, (1, 28, 28))
    assert len(toy_mnist.requests) == 4
    get("mnist", tmp_path, patience=QUICK)
    assert len(toy_mnist.requests) == 4
    get("mnist", tmp_path, patience=QUICK, force=True)  # they are the publisher's
    assert len(toy_mnist.requests) == 4


def test_get_goes_to_the_environments_folder(toy_mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path / "data"))
    assert get("mnist", patience=QUICK) == tmp_path / "data" / "mnist"


def test_get_does_not_replace_a_file_of_another_content_unless_forced(toy_mnist, tmp_path):
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.parent.mkdir()
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="not the publisher's file"):
        get("mnist", tmp_path, patience=QUICK)
    assert path.read_bytes() == b"mine"
    get("mnist", tmp_path, patience=QUICK, force=True)
    assert path.read_bytes() == toy_mnist.files[f"/0/{path.name}"]


def test_get_knows_its_names_and_the_room_there_is(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="unknown data set 'minst'; did you mean 'mnist'"):
        get("minst", tmp_path)
    huge = replace(CATALOGUE["svhn"], files=(replace(CATALOGUE["svhn"].files[0], size=10**18),))
    monkeypatch.setitem(CATALOGUE, "svhn", huge)
    with pytest.raises(OSError, match=r"svhn needs 1e\+06 TB and the disk .* make room first"):
        get("svhn", tmp_path)


def tar_of(members: dict[str, bytes], how: str = "gz", extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=f"w:{how}") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
        for info in extra:
            tar.addfile(info)
    return raw.getvalue()


def test_get_unpacks_an_archive_and_drops_it(server, tmp_path, monkeypatch):
    body = tar_of({"toys-py/a": b"one", "toys-py/sub/b": b"two"})
    file = replace(wanted(server, "toys.tar.gz", body), becomes="toys-py", unpacked=1000)
    monkeypatch.setitem(CATALOGUE, "toys", DataSource("2", 2, "", "", "", (file,)))
    place = get("toys", tmp_path, patience=QUICK)
    assert (place / "toys-py" / "sub" / "b").read_bytes() == b"two"
    assert [p.name for p in place.iterdir()] == ["toys-py"]
    get("toys", tmp_path, patience=QUICK)
    assert len(server.requests) == 1
    (place / "toys-py" / "mine").write_text("x")
    get("toys", tmp_path, patience=QUICK, force=True)
    assert sorted(p.name for p in (place / "toys-py").iterdir()) == ["a", "sub"]


def test_get_takes_an_archive_put_there_by_hand(server, tmp_path, monkeypatch):
    body = tar_of({"toys-py/a": b"one"})
    file = replace(wanted(server, "toys.tar.gz", body), becomes="toys-py", unpacked=1000)
    monkeypatch.setitem(CATALOGUE, "toys", DataSource("2", 2, "", "", "", (file,)))
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "toys.tar.gz").write_bytes(body)
    assert (get("toys", tmp_path) / "toys-py" / "a").read_bytes() == b"one"
    assert server.requests == []


def test_unpack_gives_what_was_packed(tmp_path):
    members = {"a.txt": b"one", "sub/b.bin": BODY}
    (tmp_path / "x").write_bytes(tar_of(members))
    out = unpack_archive(tmp_path / "x", tmp_path / "out", most=10**6, members=5)
    assert {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()} == members
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "x"]
    if os.name == "posix":
        assert stat.S_IMODE(out.stat().st_mode) == 0o755
    (tmp_path / "x").write_bytes(tar_of({"c.txt": b"two"}))
    unpack_archive(tmp_path / "x", out, most=10**6, members=5)
    assert [p.name for p in out.iterdir()] == ["c.txt"]


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def damaged() -> bytes:
    body = bytearray(tar_of({"a": BODY}, "gz"))
    body[len(body) // 2] ^= 0xFF
    return bytes(body)


HOSTILE = {
    "tar climbs": (lambda: tar_of({"ok": b"1", "../evil": b"2"}), "'../evil' leads out"),
    "tar climbs within": (lambda: tar_of({"a/../../evil": b"2"}), "leads out"),
    "tar absolute": (lambda: tar_of({"/tmp/evil": b"2"}), "leads out"),
    "tar windows": (lambda: tar_of({"..\\evil": b"2"}), "leads out"),
    "tar drive": (lambda: tar_of({"C:evil": b"2"}), "leads out"),
    "symlink": (lambda: tar_of({"a": b"1"}, extra=(special("l", tarfile.SYMTYPE, "/etc"),)), "'l' is a link or device"),
    "hard link": (lambda: tar_of({"a": b"1"}, extra=(special("l", tarfile.LNKTYPE, "a"),)), "'l' is a link or device"),
    "device": (lambda: tar_of({}, extra=(special("d", tarfile.CHRTYPE),)), "'d' is a link or device"),
    "pipe": (lambda: tar_of({}, extra=(special("p", tarfile.FIFOTYPE),)), "'p' is a link or device"),
    "too large": (lambda: tar_of({"a": BODY, "b": BODY}), "more than 1 MB come out"),
    "too many": (lambda: tar_of({str(k): b"" for k in range(21)}), "more than 20 members"),
    "twice": (lambda: tar_of({"a": b"1", "./A": b"2"}), "stands twice"),
    "truncated": (lambda: tar_of({"a": BODY})[:300_000], "damaged"),
    "truncated at the end": (lambda: tar_of({"a": BODY})[:-4], "damaged"),
    "damaged": (damaged, "damaged"),
    "rubbish": (lambda: b"rubbish" * 1000, "damaged or no .tar.gz"),
    "empty": (lambda: tar_of({}), "holds no files"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_unpack_refuses_and_leaves_nothing(tmp_path, case):
    make, says = HOSTILE[case]
    (tmp_path / "in").mkdir()
    packed = tmp_path / "in" / "x"
    packed.write_bytes(make())
    with pytest.raises(ValueError, match=says):
        unpack_archive(packed, tmp_path / "in" / "out", most=1_000_000, members=20)
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["x"]
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert not Path("/tmp/evil").exists()


def test_the_catalogue_is_whole():
    assert list(CATALOGUE) == ["mnist", "fashion-mnist", "svhn", "cifar10", "cifar100"]
    for source in CATALOGUE.values():
        assert source.licence
        assert source.cite
        for file in source.files:
            assert len(file.md5) == 32
            assert file.size > 4000
            assert all(url.endswith(file.name) for url in file.urls)
    assert len({file.md5 for source in CATALOGUE.values() for file in source.files}) == 12


@pytest.mark.parametrize("name", CATALOGUE)
def test_found_looks_where_load_does(tmp_path, name):
    with pytest.raises(FileNotFoundError) as error:
        load(name, tmp_path)
    for layout in CATALOGUE[name].layouts:
        place = tmp_path / layout
        assert str(place) in re.split(
            r",? |: ", str(error.value).replace("/,", ",").replace("/;", ";").replace(";", " ")
        )
        assert find_named(name, tmp_path) is None
        place.mkdir(parents=True, exist_ok=True)
        first = next(iter(CATALOGUE[name].wanted.values()))[0]
        (place / first).write_bytes(b"x")
        found = find_named(name, tmp_path)
        assert (found.place, bool(found.missing)) == (place, True)
        (place / first).unlink()


def test_files_in_the_folder_itself_are_found_by_list_and_load(tmp_path):
    """MNIST and Fashion-MNIST share file names: the first labels tell which one is there."""
    idx_files(tmp_path, packed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 0, 0])))
    assert len(load("mnist", tmp_path).pool) == 12
    found = find_named("mnist", tmp_path)
    assert (found.place, found.missing) == (tmp_path, ())
    assert find_named("fashion-mnist", tmp_path) is None
    code, text = invoke("list", "--folder", str(tmp_path))
    assert code == 0
    rows = {line.split()[0]: line.rstrip() for line in text.splitlines() if line.strip()}
    assert rows["mnist"].endswith(" .")
    assert "no (" in rows["fashion-mnist"]


@pytest.mark.parametrize("name", CATALOGUE)
def test_list_and_load_agree_on_every_layout(tmp_path, name):
    write = {"svhn": svhn_files, "cifar10": cifar10_files, "cifar100": cifar100_files}.get(name, idx_files)
    for k, layout in enumerate(CATALOGUE[name].layouts):
        write(tmp_path / str(k) / layout)
        found = find_named(name, tmp_path / str(k))
        assert (found.place, found.missing) == (tmp_path / str(k) / layout, ())
        assert len(load(name, tmp_path / str(k)).pool)


def invoke(*words: str) -> tuple[int, str]:
    from foretaste.cli import app

    got = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["data", *words])
    return got.exit_code, re.sub(r"\x1b\[[0-9;]*m", "", got.output)


def test_the_command_line_gets_and_lists(toy_mnist, tmp_path):
    code, text = invoke("get", "mnist", "--folder", str(tmp_path))
    assert code == 0
    assert f"mnist: {tmp_path / 'mnist'} (fetched)" in text
    assert "licence: CC BY-SA 3.0; paper: LeCun, Bottou" in text
    code, text = invoke("get", "mnist", "--folder", str(tmp_path))
    assert (code, len(toy_mnist.requests)) == (0, 4)
    assert "(there already)" in text
    code, text = invoke("list", "--folder", str(tmp_path))
    assert code == 0
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert {"digits", *CATALOGUE} <= set(rows)
    assert rows["mnist"].split()[-1] == "mnist"
    assert "no (246 MB)" in rows["svhn"]
    assert "non-commercial" in rows["svhn"]


def test_the_command_line_knows_all_names_before_it_starts(toy_mnist, tmp_path):
    code, text = invoke("get", "mnist", "cifar11", "--folder", str(tmp_path))
    assert code == 2
    assert "unknown data set 'cifar11'; did you mean 'cifar10'?" in text
    assert toy_mnist.requests == []


def test_the_command_line_tells_a_failure_in_one_line(toy_mnist, tmp_path):
    toy_mnist.files.clear()
    code, text = invoke("get", "mnist", "--folder", str(tmp_path))
    assert code == 2
    (line,) = [line for line in text.splitlines() if line.startswith("error:")]
    assert "the server says 404" in line
