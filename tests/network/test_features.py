"""ft.features: equal to a plain loop bit for bit, kept on disk, resumed, recomputed where something changed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import foretaste as ft
import oracles
from foretaste.network import Backbone, feature_home
from foretaste.network.features import PASS_ON_CPU


def conv(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU()).eval()


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 70), nn.ReLU(), nn.Linear(70, 20)).eval()


def pixels(n, side=9, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, 3, side, side), dtype=np.uint8))


class Counted(nn.Module):
    """Counts its passes."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.passes = inner, 0

    def forward(self, x):
        self.passes += 1
        return self.inner(x)


# Equal to the plain loop


@pytest.mark.parametrize("n", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("chunk_size", [1, 3, 8, 20, None])
def test_features_are_those_of_a_plain_loop_bit_for_bit_in_any_chunk_size(tmp_path, n, chunk_size):
    module, x = mlp(), torch.randn(n, 30, generator=torch.Generator().manual_seed(n))
    wanted = oracles.plain_features(module, lambda ids: x[ids], n, PASS_ON_CPU)
    for cache in (tmp_path, False):
        got = ft.features(module, x, chunk_size=chunk_size, cache=cache)
        assert got.dtype == torch.float32
        assert torch.equal(got, wanted)


def test_pictures_averaged_over_space_bit_for_bit(tmp_path):
    module, x = conv(), pixels(21)
    wanted = oracles.plain_features(lambda b: module(b).flatten(2).mean(2), lambda ids: x[ids].float() / 255, 21, 8)
    for chunk_size in (1, 13, 100):
        assert torch.equal(ft.features(module, x, chunk_size=chunk_size, cache=False), wanted)


def test_every_kind_of_data_gives_the_same_features(tmp_path):
    module, x = conv(), pixels(10)
    wanted = ft.features(module, x, cache=tmp_path)
    labels = torch.arange(10)
    for data in (x.numpy(), list(x), [a.numpy() for a in x], torch.utils.data.TensorDataset(x, labels)):
        assert torch.equal(ft.features(module, data, cache=tmp_path), wanted)

    class Keywords(nn.Module):
        def forward(self, x, scale):
            return module(x) * scale[:, None, None, None]

    data = {"x": x, "scale": torch.ones(10)}
    assert torch.equal(ft.features(Keywords().eval(), data, cache=tmp_path), wanted)
    assert torch.equal(ft.features(Keywords().eval(), [{k: v[i] for k, v in data.items()} for i in range(10)]), wanted)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETASTE_CACHE", str(tmp_path / "cache"))


def test_a_layer_is_taken_and_pooled(tmp_path):
    module, x = conv(), pixels(5)
    with torch.no_grad():
        wanted = module[:3](x.float() / 255).mean((2, 3))
    torch.testing.assert_close(ft.features(module, x, layer="2"), wanted)
    assert ft.features(module, x, layer="2").shape == (5, 8)
    assert not module[2]._forward_hooks
    tokens = nn.Sequential(nn.Embedding(9, 4), nn.Identity()).eval()
    ids = torch.arange(12).reshape(4, 3) % 9
    torch.testing.assert_close(ft.features(tokens, ids), tokens(ids).mean(1).detach())


def test_the_default_folder_and_the_mapped_file(tmp_path):
    x = pixels(10)
    found = ft.features(conv(), x)
    assert feature_home() == tmp_path / "cache"
    (file,) = feature_home().glob("*.npy")
    before = file.read_bytes()
    assert np.array_equal(np.load(file), found.numpy())
    found += 1  # copy on write
    assert file.read_bytes() == before
    about = json.loads(next(feature_home().glob("*.json")).read_text())
    assert about["backbone"] == "Sequential"
    assert (about["rows"], about["columns"]) == (10, 12)


def test_no_folder_to_write_to_is_told_and_nothing_is_kept(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORETASTE_CACHE", str(tmp_path / "file" / "inside"))
    assert ft.features(conv(), pixels(3)).shape == (3, 12)
    assert "features are not kept" in caplog.text
    with pytest.raises(ValueError, match="a file; expected a folder"):
        ft.features(conv(), pixels(3), cache=tmp_path / "file")


# Kept, and computed again where something changed


def test_the_second_call_reads_the_file_and_tells_progress(tmp_path):
    module, x, told = Counted(conv()).eval(), pixels(40), []
    first = ft.features(module, x, chunk_size=16, progress=lambda *at: told.append(at))
    assert told == [(0, 40), (16, 40), (32, 40), (40, 40)]
    passes = module.passes
    assert passes == 5 + 2  # and two that look whether features vary with the batch
    assert torch.equal(ft.features(module, x, progress=lambda *at: told.append(at)), first)
    assert module.passes == passes + 1  # the first and the last point are looked at again
    assert told[-1] == (40, 40)


def test_what_changes_the_digest(tmp_path):
    x = pixels(10)

    def files():
        return len(list(feature_home().glob("*.npy")))

    module = conv()
    ft.features(module, x)
    ft.features(module, x.clone())
    ft.features(conv(), x)
    assert files() == 1
    with torch.no_grad():
        module[0].weight[0, 0, 0, 0] += 1e-3
    ft.features(module, x)
    assert files() == 2
    module[1].running_mean[0] += 1e-3  # a buffer
    ft.features(module, x)
    assert files() == 3
    ft.features(module, x, layer="0")
    assert files() == 4
    other = x.clone()
    other[3, 0, 0, 0] ^= 1
    ft.features(module, other)
    assert files() == 5
    module[4] = nn.GELU()  # no weights of its own
    ft.features(module.eval(), x)
    assert files() == 6
    for words in ("as is", "otherwise"):
        ft.features(Backbone("mine", conv(), lambda items: torch.stack(items) / 255, words), x)
    assert files() == 8


@pytest.mark.parametrize("of", ["palette", "transparency", "orientation"])
def test_what_stands_beside_the_pixels_of_a_picture_counts(of):
    """The picture in the middle: the first and the last are computed again on every call, and would show it."""

    def picture(value):
        image = Image.new("P", (4, 4), 1)
        image.putpalette([0, 0, 0, 255 * value if of == "palette" else 90, 80, 70])
        if of == "transparency":
            image.info["transparency"] = value
        if of == "orientation":
            image.getexif()[0x0112] = 1 + value
        return image

    def size_and_colour(items):
        return torch.tensor([[*i.convert("RGBA").getpixel((0, 0)), i.getexif().get(0x0112, 1)] for i in items]).float()

    backbone = Backbone("colour", nn.Identity().eval(), size_and_colour, "the first pixel")
    plain = Image.new("RGB", (4, 4))
    found = [ft.features(backbone, [plain, picture(value), plain]) for value in (0, 1)]
    assert torch.equal(found[1][1], size_and_colour([picture(1)])[0])
    assert not torch.equal(found[0], found[1])


def test_a_changed_forward_is_seen_though_the_weights_are_the_same(tmp_path, caplog):
    class Scaled(nn.Module):
        factor = 1.0

        def forward(self, x):
            return self.factor * x.flatten(1)

    x = pixels(10)
    first = ft.features(Scaled().eval(), x).clone()
    Scaled.factor = 2.0
    assert torch.equal(ft.features(Scaled().eval(), x), 2 * first)
    assert "the same weights and other features" in caplog.text
    assert len(list(feature_home().glob("*.npy"))) == 1


def test_data_with_a_digest_of_its_own_is_not_read_for_it(tmp_path):
    class Lazy:
        digest, read = "version 1", 0

        def __len__(self):
            return 20

        def __getitem__(self, i):
            Lazy.read += 1
            return torch.full((30,), float(i))

    ft.features(mlp(), Lazy())
    Lazy.read = 0
    ft.features(mlp(), Lazy())
    assert Lazy.read == 2
    Lazy.digest = "version 2"
    ft.features(mlp(), Lazy())
    assert len(list(feature_home().glob("*.npy"))) == 2


# Points that come and go


class Files:
    """Points with a digest of each, as pictures on disk have; counts what is read."""

    def __init__(self, x, names):
        self.x, self.names, self.read = x, list(names), []

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        self.read.append(self.names[i])
        return self.x[self.names[i]]

    def digest_of(self, i):
        return bytes([self.names[i]])

    @property
    def digest(self):
        return repr(self.names)


@pytest.mark.parametrize("kind", ["files", "list", "tensor"])
def test_an_added_point_is_computed_alone_and_the_old_file_goes(kind):
    x = pixels(41)
    make = {
        "files": lambda names: Files(x, names),
        "list": lambda names: [x[k] for k in names],
        "tensor": lambda names: x[torch.tensor(list(names))],
    }[kind]
    module, told = Counted(conv()).eval(), []
    ft.features(module, make(range(40)))
    passes, names = module.passes, [*range(20), 40, *range(20, 40)]  # it sorts into the middle
    found = ft.features(module, make(names), progress=lambda *at: told.append(at))
    assert module.passes == passes + 2  # the point, and a look whether the network is still the same
    assert told[0] == (40, 41)
    assert told[-1] == (41, 41)
    torch.testing.assert_close(found, ft.features(conv(), x[torch.tensor(names)], cache=False), rtol=1e-5, atol=1e-6)
    assert len(list(feature_home().glob("*.npy"))) == 1
    again = ft.features(module, make(names))
    assert torch.equal(again, found)
    assert module.passes == passes + 3


def test_removed_and_reordered_points_cost_nothing():
    x, module = pixels(40), Counted(conv()).eval()
    whole = ft.features(module, Files(x, range(40))).clone()
    passes = module.passes
    names = [39, *range(5, 30)]
    assert torch.equal(ft.features(module, Files(x, names)), whole[names])
    assert module.passes == passes + 1
    assert len(list(feature_home().glob("*.npy"))) == 2  # the larger one has more than the smaller
    assert torch.equal(ft.features(module, Files(x, range(40))), whole)
    assert module.passes == passes + 2


def test_points_that_share_few_with_another_set_leave_its_file_alone():
    x, module = pixels(60), Counted(conv()).eval()
    first = ft.features(module, Files(x, range(40))).clone()
    ft.features(module, Files(x, range(10, 60)))
    assert len(list(feature_home().glob("*.npy"))) == 2
    passes = module.passes
    ft.features(module, Files(x, range(60)))  # all are known by now, in two files
    assert module.passes == passes + 1
    assert len(list(feature_home().glob("*.npy"))) == 1
    assert torch.equal(ft.features(module, Files(x, range(40))), first)


def test_rows_of_another_network_or_layer_are_not_taken():
    x = pixels(20)
    ft.features(conv(), Files(x, range(20)))
    for module, how in ((conv(1), {}), (conv(), {"layer": "2"})):
        wanted = ft.features(module, x, cache=False, **how)
        torch.testing.assert_close(ft.features(module, Files(x, range(20)), **how), wanted)


def test_rows_of_a_changed_forward_are_not_taken(caplog):
    class Shifted(nn.Module):
        by = 0.0

        def forward(self, x):
            return x.flatten(1) + self.by

    x = pixels(20)
    ft.features(Shifted().eval(), Files(x, range(19)))
    Shifted.by = 1.0
    assert torch.equal(ft.features(Shifted().eval(), Files(x, range(20))), x.flatten(1).float() / 255 + 1)
    assert "the same weights and other features" in caplog.text


@pytest.mark.parametrize("damage", ["rows", "items", "no items", "header", "a pipe"])
def test_damaged_rows_of_another_file_are_not_taken(damage):
    x, module = pixels(41), Counted(conv()).eval()
    ft.features(module, Files(x, range(40)), chunk_size=8)
    (file,) = feature_home().glob("*.npy")
    other = {"rows": file, "header": file.with_suffix(".json")}.get(damage, file.with_suffix(".items"))
    raw = bytearray(other.read_bytes())
    raw[-1 if damage == "items" else len(raw) // 2 if damage == "rows" else 3] ^= 1
    other.write_bytes(raw[5:] if damage == "header" else raw)
    if damage in ("no items", "a pipe"):
        other.unlink()
    if damage == "a pipe":
        os.mkfifo(other)
    passes = module.passes
    found = ft.features(module, Files(x, range(41)))
    torch.testing.assert_close(found, ft.features(conv(), x, cache=False), rtol=1e-5, atol=1e-6)
    assert module.passes == passes + (1 + 4 if damage == "rows" else 2 + 6)  # what is before the damage is right


def test_an_interrupted_run_serves_another_set_of_points():
    x, stop = pixels(41), {"at": 33}

    class Broken(Files):
        def __getitem__(self, i):
            if self.names[i] == stop["at"]:
                raise KeyboardInterrupt
            return super().__getitem__(i)

    with pytest.raises(KeyboardInterrupt):
        ft.features(conv(), Broken(x, range(40)), chunk_size=8)
    stop.clear()
    stop["at"] = None
    data, told = Broken(x, range(41)), []
    found = ft.features(conv(), data, progress=lambda *at: told.append(at[0]))
    assert told[0] == 32
    assert set(data.read) == {0, 31, *range(32, 41)}
    torch.testing.assert_close(found, ft.features(conv(), x, cache=False), rtol=1e-5, atol=1e-6)
    assert not list(feature_home().glob("*.part"))


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "header", "sums", "no manifest", "nonsense"])
def test_a_damaged_file_is_found_and_computed_again(tmp_path, damage, caplog):
    x = pixels(40)
    wanted = ft.features(conv(), x, chunk_size=8).clone()
    (file,), (manifest,) = feature_home().glob("*.npy"), feature_home().glob("*.json")
    whole, said = bytearray(file.read_bytes()), manifest.read_text()
    if damage == "flip":
        whole[-30] ^= 1
    elif damage == "cut":
        del whole[-30:]
    elif damage == "longer":
        whole += b"1234"
    elif damage == "header":
        whole[20] ^= 1
    elif damage == "sums":
        said = said.replace("[8, ", "[9, ")
    elif damage == "nonsense":
        said = "[" * 5000
    file.write_bytes(whole)
    manifest.write_text(said)
    if damage == "no manifest":
        manifest.unlink()
    assert torch.equal(ft.features(conv(), x, chunk_size=8), wanted)
    assert "it is computed again" in caplog.text
    caplog.clear()
    assert torch.equal(ft.features(conv(), x, chunk_size=8), wanted)
    assert caplog.text == ""


@pytest.mark.parametrize("ending", [".npy", ".npy.part", ".json"])
def test_a_pipe_in_the_place_of_features_is_refused_by_name(ending):
    """Reading it would wait for ever."""
    x = pixels(8)
    ft.features(conv(), x)
    (file,) = feature_home().glob("*.npy")
    pipe = file.with_name(file.stem + ending)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=f"{pipe.name} is a pipe, a socket or a device; expected a regular file"):
        ft.features(conv(), x)


# Interrupted


def test_an_error_in_the_middle_resumes_behind_what_is_there(tmp_path):
    x = pixels(50)
    wanted = ft.features(conv(), x, cache=tmp_path / "whole", chunk_size=8)
    broken, read = {"at": 33}, []

    class Broken:
        digest = "the same"

        def __len__(self):
            return 50

        def __getitem__(self, i):
            read.append(i)
            if i == broken["at"]:
                raise KeyboardInterrupt
            return x[i]

    with pytest.raises(KeyboardInterrupt):
        ft.features(conv(), Broken(), chunk_size=8)
    assert not list(feature_home().glob("*.npy"))
    broken["at"], told = None, []
    read.clear()
    assert torch.equal(ft.features(conv(), Broken(), chunk_size=16, progress=lambda *at: told.append(at)), wanted)
    assert told[0] == (32, 50)
    assert min(read) == 32
    with (
        (tmp_path / "whole").glob("*.npy").__next__().open("rb") as a,
        next(feature_home().glob("*.npy")).open("rb") as b,
    ):
        assert a.read() == b.read()


def test_rows_that_the_manifest_does_not_list_are_cut_off(tmp_path):
    """As a kill between the two writes leaves them, and half a row."""
    x = pixels(50)
    wanted = ft.features(conv(), x, chunk_size=8).clone()
    (file,), (manifest,) = feature_home().glob("*.npy"), feature_home().glob("*.json")
    whole, said = file.read_bytes(), json.loads(manifest.read_text())
    file.unlink()
    part = file.with_name(file.name + ".part")
    part.write_bytes(whole[: len(whole) - 4 * 12 * 10 - 7])
    manifest.write_text(json.dumps({**said, "chunks": said["chunks"][:3]}))
    told = []
    assert torch.equal(ft.features(conv(), x, chunk_size=8, progress=lambda *at: told.append(at)), wanted)
    assert told[0] == (24, 50)
    assert file.read_bytes() == whole
    assert not part.exists()


CHILD = """
import sys, time, torch, numpy as np
sys.path[:0] = {path!r}
import foretaste as ft
from test_features import conv, pixels
def slow(done, n):
    print(done, flush=True)
    time.sleep(0.02)
ft.features(conv(), pixels(1500), cache=sys.argv[1], chunk_size=40, progress=slow)
"""


def child(folder):
    code = CHILD.format(path=sys.path)
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)


def test_kill_9_in_the_middle_and_again_gives_the_same_file(tmp_path):
    x = pixels(1500)
    wanted = ft.features(conv(), x, cache=tmp_path / "whole")
    with child(tmp_path / "killed") as process:
        for line in process.stdout:
            if int(line) >= 400:
                os.kill(process.pid, signal.SIGKILL)
                break
        process.wait()
    assert not list((tmp_path / "killed").glob("*.npy"))
    told = []
    again = ft.features(conv(), x, cache=tmp_path / "killed", progress=lambda *at: told.append(at[0]))
    assert 400 <= told[0] < 1500
    assert torch.equal(again, wanted)
    (a,), (b,) = (tmp_path / "whole").glob("*.npy"), (tmp_path / "killed").glob("*.npy")
    assert a.name == b.name
    assert a.read_bytes() == b.read_bytes()


def test_two_at_once_compute_once(tmp_path):
    """The second waits for the first, and finds the file."""
    x, start = pixels(300), threading.Barrier(2)
    counted = [Counted(conv()).eval(), Counted(conv()).eval()]
    found = {}

    def work(k):
        start.wait()
        found[k] = ft.features(counted[k], x, chunk_size=8, progress=lambda *at: time.sleep(0.001))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[0], found[1])
    assert sorted(c.passes for c in counted) == [1, 2 + 38]


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc to measure memory")
def test_many_points_are_never_all_in_memory(tmp_path):
    """4,000 pictures of 96 × 96 are 111 MB as bytes, 442 MB as floats; the process may grow by 60."""
    code = f"""
import sys, torch
sys.path[:0] = {sys.path!r}
import foretaste as ft
class Made:
    def __len__(self): return 4000
    def __getitem__(self, i): return torch.full((3, 96, 96), i % 256, dtype=torch.uint8)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 32, 32), torch.nn.Flatten()).eval()
def peak(): return int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])
ft.features(net, [Made()[k] for k in range(20)], cache=sys.argv[1])
before = peak()
assert ft.features(net, Made(), cache=sys.argv[1]).shape == (4000, 72)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60_000  # kB


# Refused, with the remedy


class BatchMean(nn.Module):
    def forward(self, x):
        return x.flatten(1) - x.flatten(1).mean(0)


class Noise(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x.flatten(1), 0.5, training=True)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.never = nn.Linear(30, 30), nn.Identity()

    def forward(self, x):
        return self.inner(self.inner(x))


class Tokens(nn.Module):
    def forward(self, x):
        return {"logits": x}


def nan_at(k):
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    x[k, 3] = torch.nan
    return x


X = torch.randn(20, 30, generator=torch.Generator().manual_seed(1))
BAD = {
    "train mode": (mlp().train(), X, {}, r"the backbone is in train mode, .*call \.eval\(\)"),
    "part in train mode": (conv(), pixels(9), {"part": True}, r"'1' of the backbone is in train mode"),
    "NaN": (mlp(), nan_at(17), {}, "features of point 17 are NaN or infinite"),
    "varies with the batch": (BatchMean().eval(), X, {}, "vary with the other points of the batch"),
    "batch statistics": (
        nn.Sequential(nn.BatchNorm1d(30, track_running_stats=False)).eval(),
        X,
        {},
        "track_running_stats=False",
    ),
    "varies from call to call": (Noise().eval(), X, {}, "or from call to call"),
    "unknown layer": (mlp(), X, {"layer": "inner"}, "unknown layer 'inner'"),
    "layer called twice": (Twice().eval(), X, {"layer": "inner"}, "called 2 times in one pass"),
    "layer not called": (Twice().eval(), X, {"layer": "never"}, "not called in one pass"),
    "a dict": (Tokens().eval(), X, {}, "returns a dict; expected a tensor"),
    "one number": (nn.Flatten(0).eval(), X, {}, r"returns \(240,\) .* for 8 points; expected"),
    "pictures": (mlp(), [Image.new("RGB", (4, 4))] * 3, {}, "preprocessing is not known. Give a Backbone"),
    "shapes": (mlp(), [X[0], X[1, :4]], {}, "a plain module takes one shape"),
    "strings": (mlp(), ["a", "b"], {}, "Give a Backbone with a prepare="),
    "no points": (mlp(), X[:0], {}, "no points"),
    "chunk": (mlp(), X, {"chunk_size": 0}, "chunk_size is 0"),
    "a name": ("resnet", X, {}, "unknown backbone 'resnet'"),
    "meta": (mlp().to("meta"), X, {}, "has no weights"),
    "lengths": (mlp(), {"a": X, "b": X[:3]}, {}, r"lengths \[3, 20\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_with_the_remedy(case):
    module, data, how, says = BAD[case]
    if how.pop("part", False):
        module[1].train()
    with pytest.raises(ValueError, match=says):
        ft.features(module, data, **how)
    assert not feature_home().exists() or not list(feature_home().glob("*.npy"))


@pytest.mark.parametrize(
    ("backbone", "data", "says"),
    [
        (3, X, "backbone is a int"),
        (mlp(), "photos", "data is a str"),
        (mlp(), iter(X), "without a length or positions"),
        (mlp(), [object()], "point 0 of data: a object has no digest"),
        (mlp(), np.array([None, 1]), "Python objects"),
        (mlp(), {"a": [1, 2]}, "expected a tensor or an array"),
    ],
)
def test_wrong_types_are_refused(backbone, data, says):
    with pytest.raises(TypeError, match=says):
        ft.features(backbone, data)


def test_nothing_is_left_on_the_module():
    module = conv()
    module[0].weight.requires_grad_(False)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    ft.features(module, pixels(9), layer="3")
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks for m in module.modules())
    assert [p.requires_grad for p in module.parameters()][:2] == [False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_and_moved_back():
    module, x = conv(), pixels(200)
    there = ft.features(module, x, device="cuda", cache=False)
    assert next(module.parameters()).device.type == "cpu"
    torch.testing.assert_close(there, ft.features(module, x, cache=False), rtol=1e-4, atol=1e-5)
    assert torch.equal(there, ft.features(module, x, device="cuda", cache=False, chunk_size=7))
