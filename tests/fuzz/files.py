"""Files of every kind that foretaste reads, damaged at random: each is read, or refused by name; nothing else happens.

``run(count, seed)`` makes small valid files, damages a copy, and reads it with the public readers. Besides the outcomes
of a call it counts "executed" (a reader started a process or imported what a file names) and "left behind" (a reader
wrote a file outside of what it was given).
"""

import contextlib
import io
import json
import os
import pickle
import random
import re
import shutil
import struct
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from data_files import cifar10_files, idx_files, svhn_files
from foretaste import report
from foretaste.cli.inputs import read_inputs
from foretaste.data import PictureItems, load, read_points
from foretaste.label import LabelStore, Learner, StoreError, export_labels, label_rows, read_labels
from foretaste.network import MLP, features, load_network, save_network, saved_network
from foretaste.study import Labels, Network, Train, read, study
from foretaste.study import load as load_records
from foretaste.study import run as run_study

from .outcomes import Executed, Tally, WrongError, outcome_of

CASE, SET = "fuzzed-case", "fuzzed-set"  # names that an error must have
CANARY = "foretaste_fuzz_canary"  # a module that no reader may import
OF_RUN = study(
    ("random", "margin"),
    seeds=(0, 1),
    labels=Labels(init=4, per_cycle=2, cycles=1),
    network=Network("mlp", {"hidden": (4,)}),
    train=Train(steps=2, start="warm"),
)
TOML = """title = "fuzz"
strategies = ["margin", "random"]
seeds = [0, 1]
[data]
name = "digits"
[labels]
init = 20
per_cycle = 5
cycles = 2
[train]
steps = 10
max_lr = 0.5
[network]
name = "mlp"
hidden = [8, 8]
"""


# Kinds of files


@dataclass(frozen=True)
class Kind:
    """How a kind of file is written and read. ``checked``: changed bytes are always noticed, by a checksum."""

    make: Callable[[Path], Any]
    readers: tuple[Callable[[Path], Any], ...]
    checked: bool = False
    writes: bool = False  # a reader may write into the folder


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = (np.arange(64).reshape(8, 8) + shade).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def make_npz(root: Path) -> None:
    np.savez_compressed(root / "a.npz", x=np.random.default_rng(0).normal(size=(20, 5)), y=np.arange(20) % 3)


def make_picture_npz(root: Path) -> None:
    x = np.arange(12 * 6 * 6).reshape(12, 6, 6).astype(np.uint8)
    np.savez(root / "a.npz", x=x, y=np.array(["cat", "dog"] * 6), ids=np.array([f"p{i}" for i in range(12)]))


def make_features(root: Path) -> None:
    rows = [f"p{i},{'cat' if i % 2 else 'dog'},{i / 7:.3f},{-i},1e-{i % 4}" for i in range(12)]
    (root / "a.csv").write_text("\n".join(["id,label,width,height,depth", *rows, ""]))


def make_table(root: Path) -> None:
    rows = [f"pics/{k}.png,{'cat' if k % 2 else 'dog'}" for k in range(6)]
    (root / "labels.csv").write_text("\n".join(["file,label", *rows, ""]))
    for k in range(6):
        picture(root / "pics" / f"{k}.png", 9 * k)


def make_folder(root: Path) -> None:
    for k in range(6):
        picture(root / ("cat" if k % 2 else "dog") / f"{k}.{['png', 'bmp', 'gif', 'tiff', 'ppm', 'jpg'][k]}", 9 * k)
    picture(root / "7.png", 99)


def make_weights(root: Path) -> None:
    torch.manual_seed(0)
    save_network(
        MLP(3, (4,), 2),
        root / "net.safetensors",
        classes=("cat", "dog"),
        normalise=((0.5,), (0.25,)),
        loss="l2",
        shape=(3,),
    )


def make_pickled_weights(root: Path) -> None:
    torch.manual_seed(0)
    torch.save(MLP(3, (4,), 2).state_dict(), root / "net.pt")


def make_run(root: Path) -> None:
    run_study(OF_RUN, root / "run")


def make_dataset(root: Path) -> None:
    import datasets

    pixels = [{"bytes": picture_bytes(9 * k), "path": None} for k in range(6)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    datasets.Dataset.from_dict({"image": pixels, "label": [0, 1] * 3}, features=features).save_to_disk(root / SET)


def make_number_dataset(root: Path) -> None:
    import datasets

    rows = {"width": [0.5 * k for k in range(6)], "both": [[k, 2.0 * k] for k in range(6)], "label": ["a", "b"] * 3}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk(root / SET)


def picture_bytes(shade: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray((np.arange(64).reshape(8, 8) + shade).astype(np.uint8)).save(out, "png")
    return out.getvalue()


def make_text(root: Path) -> None:
    rows = [
        f"{k},this film was {'good' if k % 2 else 'bad'} on day {k},{'ab'[k % 2] if k < 4 else ''}" for k in range(9)
    ]
    (root / "a.csv").write_text("id,review,label\n" + "\n".join(rows) + "\n")


def make_mixed(root: Path) -> None:
    rows = [
        f"{k},{k * 1.5 if k % 4 else ''},{'red' if k % 3 else 'blue'},2024-02-{k + 1:02},{'ab'[k % 2]}"
        for k in range(9)
    ]
    (root / "a.csv").write_text("id,width,colour,day,label\n" + "\n".join(rows) + "\n")


def make_parquet(root: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {"width": [k * 1.5 if k % 4 else None for k in range(9)], "colour": ["red", "blue", "red"] * 3}
    more = {"list": [[1.0]] * 9, "label": ["a", "b", None] * 3}
    parquet.write_table(pyarrow.table(columns | more), root / "a.parquet")


def read_encoded(path: Path) -> None:
    read_points(path).x  # noqa: B018  encoded when asked for


def read_query_inputs(path: Path) -> Any:
    """The reading step of ``foretaste query``."""
    return read_inputs(path, None, None, network=None, weights=None, encoder="none")


def read_run_folder(root: Path) -> Any:
    found = report.read_run(root / "run")
    return found.summary(), found.pictures, found.notes, found.about, found.warnings


def make_report(root: Path) -> Any:
    """The page alone: drawing the figures takes most of a second."""
    found = report.read_run(root / "run")
    return report.page(found.summary(), root / "page.html", pictures=found.pictures, title=found.title).read_text()


def make_store(root: Path) -> None:
    with LabelStore(root) as store:
        store.set_classes(["cat", "dog"])
        for k, item in enumerate(ITEMS):
            store.record(item, "label", ("cat", "dog")[k % 2], who="Ada")
        store.undo(who="Ada")


def read_store(root: Path) -> Any:
    with LabelStore(root) as store:
        return store.classes, store.labels(), [(event.seq, event.item, event.label) for event in store.events()]


def make_exchange(root: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_store(Path(folder))
        with LabelStore(folder) as store:
            for name in EXCHANGED:
                export_labels(label_rows(store), root / name)


def make_features_on_disk(root: Path) -> None:
    read_features(root)


def make_fewer_features_on_disk(root: Path) -> None:
    read_features(root, points=8)


def read_features(root: Path, points: int = 10) -> Any:
    """Whatever lies in the cache, the features are those of the backbone."""
    torch.manual_seed(0)
    backbone = torch.nn.Linear(3, 4).eval()
    return features(backbone, torch.arange(30.0).view(10, 3)[:points], cache=root)


def make_learner(root: Path) -> None:
    torch.manual_seed(0)
    learner = Learner(MLP(3, (4,), 2).eval(), torch.arange(24.0).view(8, 3), classes=["cat", "dog"])
    learner.teach([0, 1], ["cat", "dog"])
    learner.save(root / "saved")


def read_learner(root: Path) -> Any:
    return Learner.load(root / "saved").labels


ITEMS = [f"{k}.png" for k in range(6)]
EXCHANGED = ("a.csv", "a.jsonl", "a.json")
KINDS = {
    "npz": Kind(make_npz, (lambda r: load(r / "a.npz"),), checked=True),
    "npz of points": Kind(make_npz, (lambda r: read_points(r / "a.npz"),)),
    "npz of pictures": Kind(make_picture_npz, (lambda r: load(r / "a.npz"), lambda r: read_query_inputs(r / "a.npz"))),
    "csv of features": Kind(make_features, (lambda r: load(r / "a.csv"), lambda r: read_encoded(r / "a.csv"))),
    "csv of text": Kind(make_text, (lambda r: read_encoded(r / "a.csv"),)),
    "mixed table": Kind(make_mixed, (lambda r: read_encoded(r / "a.csv"),)),
    "parquet": Kind(make_parquet, (lambda r: load(r / "a.parquet"), lambda r: read_encoded(r / "a.parquet"))),
    "csv of files": Kind(
        make_table,
        (load, read_encoded, lambda r: load(r / "labels.csv"), lambda r: read_points(r / "labels.csv").sizes),
    ),
    "folder of pictures": Kind(make_folder, (load, read_encoded, read_query_inputs, lambda r: read_points(r).items[0])),
    "idx": Kind(lambda r: idx_files(r, n=10), (lambda r: load("mnist", r),), checked=True),
    "cifar": Kind(lambda r: cifar10_files(r, each=2, meta=True), (lambda r: load("cifar10", r),)),
    "cifar, protocol 4": Kind(
        lambda r: cifar10_files(r, dump=lambda v: pickle.dumps(v, protocol=4), each=2), (lambda r: load("cifar10", r),)
    ),
    "svhn": Kind(lambda r: svhn_files(r, n=10), (lambda r: load("svhn", r),)),
    "weights": Kind(
        make_weights,
        (lambda r: load_network(None, r / "net.safetensors"), lambda r: saved_network(r / "net.safetensors")),
    ),
    "pickled weights": Kind(
        make_pickled_weights,
        (lambda r: load_network("mlp", r / "net.pt", options={"hidden": [4]}, classes=2, shape=(3,)),),
    ),
    "toml": Kind(lambda r: (r / "a.toml").write_text(TOML), (lambda r: read(r / "a.toml"),)),
    "folder of a run, read": Kind(make_run, (read_run_folder, lambda r: load_records(r / "run"))),
    "folder of a run, resumed": Kind(make_run, (lambda r: run_study(OF_RUN, r / "run"), make_report), writes=True),
    "saved dataset": Kind(make_dataset, (lambda r: load(r / SET), lambda r: read_points(r / SET))),
    "saved dataset of numbers": Kind(make_number_dataset, (lambda r: read_points(r / SET),)),
    "labels.sqlite": Kind(
        make_store, (read_store, lambda r: LabelStore(r, read_only=True).labels()), checked=True, writes=True
    ),
    "labels to import": Kind(
        make_exchange, tuple(partial(lambda name, r: read_labels(r / name, ITEMS), name) for name in EXCHANGED)
    ),
    "saved learner": Kind(make_learner, (read_learner,), checked=True),
    "features on disk": Kind(make_features_on_disk, (read_features,), checked=True, writes=True),
    "features of fewer points": Kind(make_fewer_features_on_disk, (read_features,), checked=True, writes=True),
}
SLOW = {"folder of a run, resumed": 0.3, "svhn": 0.5, "folder of pictures": 0.5, "saved dataset": 0.5}  # drawn less


# Damage: each changes the files below a root, and says what it did


def files_of(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and "locks" not in p.parts)


def change_bytes(root: Path, draw: random.Random) -> str:
    path = draw.choice(files_of(root))
    raw = bytearray(path.read_bytes())
    at, n = draw.randrange(len(raw) + 1), draw.choice([1, 2, 4, 8, 64])
    how = draw.choice(["truncate", "flip", "flip", "insert", "zero", "append", "empty", "huge", "repeat"])
    if how == "truncate":
        del raw[at:]
    elif how == "flip" and raw:
        for _ in range(n):
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    elif how == "insert":
        raw[at:at] = draw.randbytes(n)
    elif how == "zero":
        raw[at : at + n] = bytes(len(raw[at : at + n]))
    elif how == "append":
        raw += draw.randbytes(n)
    elif how == "empty":
        raw.clear()
    elif how == "huge":  # most lengths stand at the beginning or at the end
        at = draw.choice([draw.randrange(64), at, max(0, len(raw) - draw.randrange(64))])
        number = draw.choice(
            [struct.pack("<Q", 2**62), struct.pack(">I", 2**31 - 1), b"\xff" * 8, struct.pack("<I", 1 << 30)]
        )
        raw[at : at + len(number)] = number
    elif how == "repeat":
        raw[at:at] = raw[max(0, at - n) : at] * draw.choice([1, 100])
    path.write_bytes(raw)
    return f"{how} {path.name} at {at}, {n}"


WORDS = [
    "nan",
    "inf",
    "-inf",
    "1e999",
    "-1",
    "9" * 5000,
    "99999999999999999999",
    "x",
    "",
    "null",
    "[]",
    "{}",
    "true",
    "0.5",
    "=1+1",
    "\\u0000",
    "\x1b[2J",
    "../../outside/secret",
    "\ud800",
]


def change_text(root: Path, draw: random.Random) -> str:
    """A number or word of a text becomes another."""
    texts = [p for p in files_of(root) if p.suffix in (".csv", ".json", ".jsonl", ".toml")]
    if not texts:
        return change_bytes(root, draw)
    path = draw.choice(texts)
    text = path.read_text(encoding="utf-8", errors="replace")
    tokens = list(re.finditer(r"[\w.+-]+", text))
    word = draw.choice(WORDS)
    if tokens:
        token = draw.choice(tokens)
        text = text[: token.start()] + word + text[token.end() :]
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return f"{word[:20]!r} in {path.name}"


ODD_VALUES: list[Any] = [
    None,
    True,
    -1,
    0.5,
    10**30,
    "x",
    "\x1b[2J",
    [],
    {},
    [[]],
    [None],
    {"a": {}},
    1e308,
    "os:system",
    CANARY + ":run",
    "9" * 4000,
]


def change_json(root: Path, draw: random.Random) -> str:
    """A value in JSON becomes another or goes: in a file, a line of records, or the header of safetensors."""
    paths = [p for p in files_of(root) if p.suffix in (".json", ".jsonl", ".safetensors")]
    if not paths:
        return change_text(root, draw)
    path = draw.choice(paths)
    raw = path.read_bytes()
    if path.suffix == ".safetensors":
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + length])
        if "foretaste" in header.get("__metadata__", ()) and draw.random() < 0.7:
            about = json.loads(header["__metadata__"]["foretaste"])
            what = _change_value(about, draw)
            header["__metadata__"]["foretaste"] = json.dumps(about)
        else:
            what = _change_value(header, draw)
        made = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(made)) + made + raw[8 + length :])
    elif path.suffix == ".jsonl":
        lines = raw.splitlines()
        k = draw.randrange(len(lines))
        record = json.loads(lines[k])
        what = _change_value(record, draw)
        lines[k] = json.dumps(record).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")
    elif draw.random() < 0.1:
        path.write_text(draw.choice(["[", '{"a":']) * 100_000)
        what = "nested"
    else:
        value = json.loads(raw)
        what = _change_value(value, draw)
        path.write_text(json.dumps(value))
    return f"{path.name}: {what}"


def _change_value(value: Any, draw: random.Random) -> str:
    """Change one entry somewhere below ``value``, a dict or list that is not empty."""
    where, inside = "", value
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        key = draw.choice(keys)
        where += f".{key}"
        if isinstance(inside[key], dict | list) and inside[key] and draw.random() < 0.7:
            inside = inside[key]
            continue
        if draw.random() < 0.25:
            del inside[key]
            return f"without {where}"
        inside[key] = draw.choice(ODD_VALUES)
        return f"{where} = {str(inside[key])[:20]!r}"


def change_tree(root: Path, draw: random.Random) -> str:
    """A file goes, or becomes a pipe, a link, a folder or another file; or gets an odd name."""
    files = files_of(root)
    path, other = draw.choice(files), draw.choice(files)
    how = draw.choice(
        ["remove", "pipe", "link out", "link to device", "loop", "dangling", "folder", "swap", "name", "pipe beside"]
    )
    if how == "swap":
        a, b = path.read_bytes(), other.read_bytes()
        path.write_bytes(b)
        other.write_bytes(a)
        return f"swap {path.name} and {other.name}"
    if how == "name":
        names = [b"caf\xe9", b"\x1b[2J", b"=1+1", b"new\nline", b"-rf"]
        os.rename(path, os.path.join(os.fsencode(path.parent), draw.choice(names) + os.fsencode(path.suffix)))
        return f"rename {path.name}"
    if how == "pipe beside":
        os.mkfifo(path.with_name(f"beside{path.suffix}"))
        return f"pipe beside {path.name}"
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "link out":
        path.symlink_to(root.parent / "outside" / "secret")
    elif how == "link to device":
        path.symlink_to("/dev/zero")
    elif how == "loop":
        path.symlink_to(path)
    elif how == "dangling":
        path.symlink_to(path.with_name("nowhere"))
    elif how == "folder":
        path.mkdir()
    return f"{how} {path.name}"


class RunsOnLoad:
    """Pickled, it runs a command when it is loaded carelessly."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def attack(root: Path, draw: random.Random) -> str:
    """What somebody with bad intentions would write in place of a file."""
    path = draw.choice(files_of(root))
    touch = f"touch {root.parent}/outside/executed"
    how = draw.choice(["pickle", "npz of objects", "bomb", "postscript", "module", "toml"])
    if how == "pickle":
        path.write_bytes(pickle.dumps(RunsOnLoad(touch), protocol=draw.choice([0, 2, 4])))
    elif how == "npz of objects":
        with path.open("wb") as file:
            np.savez(
                file,
                x=np.array([RunsOnLoad(touch)], dtype=object),
                y=np.arange(1),
                ids=np.arange(1),
                pixels=np.arange(1),
            )
    elif how == "bomb":
        write_bomb(path)
    elif how == "postscript":
        path.write_bytes(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(%pipe%" + touch.encode() + b") (w) file\n%%EOF\n"
        )
    elif how == "module":
        for one in files_of(root):
            raw = one.read_bytes()
            if one.suffix == ".safetensors":
                length = struct.unpack("<Q", raw[:8])[0]
                header = json.loads(raw[8 : 8 + length])
                header["__metadata__"] = {"foretaste": json.dumps({
                    "network": f"{CANARY}:run", "options": {}, "classes": None, "normalise": None, "loss": None,
                    "shape": [3]})}  # fmt: skip
                made = json.dumps(header).encode()
                one.write_bytes(struct.pack("<Q", len(made)) + made + raw[8 + length :])
            elif one.suffix in (".json", ".jsonl"):
                one.write_bytes(raw.replace(b'"mlp"', f'"{CANARY}:run"'.encode()).replace(b"margin", CANARY.encode()))
    else:
        path.write_text('strategies = ["random"]\n' + "a = " + "[" * 50_000)
    return f"{how} as {path.name}"


BOMB_BYTES = 3 * 10**8


def write_bomb(path: Path) -> None:
    """A small zip whose array claims and holds 300 MB of zeros in a thousandth of that; or claims far more."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 8)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in ("x", "y", "ids", "pixels"):
            packed.writestr(f"{name}.npy", header.getvalue() + bytes(100_000))


DAMAGES = [change_bytes] * 4 + [change_text] * 2 + [change_json] * 2 + [change_tree] * 2 + [attack]


# The run


def run(count: int, seed: int = 0) -> Tally:
    """``count`` damaged files of all kinds, each read once."""
    tally, draw, executed = Tally(), random.Random(seed), Executed()
    with sandbox() as top:
        templates, known = {}, {}
        for name, kind in KINDS.items():
            templates[name] = top / "templates" / name
            templates[name].mkdir(parents=True)
            kind.make(templates[name])
            case = copy_case(top, templates[name])
            for k, reader in enumerate(kind.readers):  # imports what it needs, and shows what is right
                known[name, k] = fingerprint(reader(case))
        names = list(KINDS)
        weights = [SLOW.get(name, 1.0) for name in names]
        before = outside(top)
        for _ in range(count):
            (name,) = draw.choices(names, weights)
            kind, case = KINDS[name], copy_case(top, templates[name])
            how = draw.choice(DAMAGES) if draw.random() < 0.95 else None
            what = "nothing" if how is None else how(case, draw)
            k = draw.randrange(len(kind.readers))
            listed = listing(case)
            executed.seen.clear()
            executed.on = True
            same = how is None or (how is change_bytes and kind.checked)
            outcome, words = outcome_of(partial(read_case, kind.readers[k], case, known[name, k] if same else None))
            executed.on = False
            if how is None and outcome == "clear error":
                outcome = "wrong"
            if executed.seen or CANARY in sys.modules:
                outcome, words = "executed", f"{executed.seen[:3]} after {outcome}: {words}"
                sys.modules.pop(CANARY, None)
            elif (after := outside(top)) != before or (not kind.writes and listing(case) != listed):
                new = sorted(after ^ before) or sorted(set(listing(case)) ^ set(listed))
                outcome, words = "left behind", f"{new[:3]} after {outcome}: {words}"
                before = after
            tally.add(outcome, f"{name}, reader {k}, {what}: {words}")
    return tally


def read_case(reader: Callable[[Path], Any], case: Path, expected: str | None) -> None:
    """Read a damaged copy. An error must name the file or folder; a result must be as expected, where that is known."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = reader(case)
    except (ValueError, OSError, StoreError) as error:
        if CASE not in str(error) and SET not in str(error):
            raise RuntimeError(f"an error that names no file: {str(error)[:150]}") from error
        raise
    if expected is not None and fingerprint(found) != expected:
        raise WrongError("it was read as something else")


@contextlib.contextmanager
def sandbox() -> Iterator[Path]:
    """A folder to work in, which is also the home, the current folder and the place of temporary files."""
    beside = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    top = Path(tempfile.mkdtemp(prefix="fuzz", dir=beside))
    here, temporary, environment = Path.cwd(), tempfile.tempdir, dict(os.environ)
    for name in ("outside", "outside/home", "outside/tmp", "outside/here"):
        (top / name).mkdir()
    (top / "outside" / "secret").write_bytes(picture_bytes(0))
    (top / "outside" / f"{CANARY}.py").write_text("def run(*args, **options):\n    raise SystemExit('executed')\n")
    os.environ |= {"HOME": str(top / "outside" / "home"), "HF_HOME": str(top / "outside" / "home")}
    sys.path.insert(0, str(top / "outside"))
    tempfile.tempdir = str(top / "outside" / "tmp")
    os.chdir(top / "outside" / "here")
    try:
        yield top
    finally:
        os.chdir(here)
        tempfile.tempdir = temporary
        sys.path.remove(str(top / "outside"))
        os.environ.clear()
        os.environ |= environment
        shutil.rmtree(top, ignore_errors=True)


def copy_case(top: Path, template: Path) -> Path:
    case = top / CASE
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(template, case)
    return case


def outside(top: Path) -> set[str]:
    return {str(p) for p in (top / "outside").rglob("*") if "__pycache__" not in p.parts}


def listing(case: Path) -> list[str]:
    return sorted(f"{p} {p.lstat().st_size}" for p in case.rglob("*") if not p.is_dir())


LEFT_OUT = (
    "path",
    "where",
    "seconds",
    "notes",
    "encode",
)  # times, paths, texts with paths, functions


def fingerprint(found: Any) -> str:
    """What was read, in words that are equal for equal contents. Times and paths are left out."""
    if isinstance(found, torch.nn.Module):
        found = found.state_dict()
    if isinstance(found, torch.Tensor | np.ndarray):
        array = found.numpy() if isinstance(found, torch.Tensor) else found
        return f"{array.dtype} {array.shape} {hash(array.tobytes())}"
    if isinstance(found, dict):
        return str({str(key): fingerprint(value) for key, value in found.items() if key not in ("cost", "peak_memory")})
    if isinstance(found, list | tuple):
        return str([fingerprint(value) for value in found])
    if isinstance(found, Image.Image):
        return fingerprint(np.asarray(found))
    if isinstance(found, PictureItems):
        return fingerprint([found[k] for k in range(len(found))])
    fields = getattr(found, "__dataclass_fields__", None)
    if fields:
        return fingerprint({name: getattr(found, name) for name in fields if name not in LEFT_OUT})
    return re.sub(r"\d+\.\d+e?[-+]?\d* ?(s|ms)\b", "", str(found)) if isinstance(found, str) else repr(found)
