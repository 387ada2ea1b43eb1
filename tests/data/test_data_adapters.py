"""Hugging Face datasets on disk and torch datasets, as Images."""

import io
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from foretaste.data import from_torch, hugging_face, load

CLASSES = ["cat", "dog", "emu"]


def noise(n: int, size: int = 6, channels: int = 3, seed: int = 0) -> np.ndarray:
    """(n, size, size, channels) bytes."""
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, channels), dtype=np.uint8)


def png(array: np.ndarray) -> bytes:
    raw = io.BytesIO()
    Image.fromarray(array).save(raw, "png")
    return raw.getvalue()


@pytest.fixture
def hf():
    return pytest.importorskip("datasets")


def table(hf, n: int, seed: int, cells=None, **columns):
    """n rows of noise with classes in turn, as a Dataset."""
    x = noise(n, seed=seed)
    cells = [{"bytes": png(a), "path": None} for a in x] if cells is None else cells
    data = {"image": cells, "label": [k % 3 for k in range(n)], **columns}
    features = {"image": hf.Image(), "label": hf.ClassLabel(names=CLASSES)}
    features |= {name: hf.Value("string") for name in columns}
    return hf.Dataset.from_dict(data, features=hf.Features(features)), x


def saved(made, path: Path) -> Path:
    import datasets

    datasets.disable_progress_bars()
    made.save_to_disk(str(path))
    return path


def test_a_saved_dataset_is_its_pixels_and_labels(hf, tmp_path):
    made, x = table(hf, 30, 0)
    data = hugging_face(saved(made, tmp_path / "animals"))
    assert data.name == "animals"
    assert data.classes == tuple(CLASSES)
    np.testing.assert_array_equal(data.x.numpy().transpose(0, 2, 3, 1), x)
    assert data.y.tolist() == [k % 3 for k in range(30)]
    assert np.bincount(data.y[data.test]).tolist() == [2, 2, 2]
    assert torch.equal(load(tmp_path / "animals").x, data.x)


def test_rows_selected_and_shuffled_before_saving_stay_so(hf, tmp_path):
    made, x = table(hf, 30, 0)
    order = [5, 3, 17, 28, 11, 9, 0, 1]
    data = hugging_face(saved(made.select(order), tmp_path / "d"))
    np.testing.assert_array_equal(data.x.numpy().transpose(0, 2, 3, 1), x[order])
    assert data.y.tolist() == [k % 3 for k in order]


@pytest.mark.parametrize("measured", ["test", "validation"])
def test_splits_are_pool_and_test(hf, tmp_path, measured):
    (train, x), (test, x_test) = table(hf, 9, 0), table(hf, 6, 1)
    path = saved(hf.DatasetDict({measured: test, "train": train}), tmp_path / "d")
    data = hugging_face(path)
    np.testing.assert_array_equal(data.x[data.pool].numpy().transpose(0, 2, 3, 1), x)
    np.testing.assert_array_equal(data.x[data.test].numpy().transpose(0, 2, 3, 1), x_test)
    swapped = hugging_face(path, pool=measured, test="train")
    assert (len(swapped.pool), len(swapped.test)) == (6, 9)
    alone = hugging_face(path, pool="train", test=1 / 3)
    assert (len(alone.pool), len(alone.test)) == (6, 3)
    with pytest.raises(ValueError, match=f"no split 'extra'; it has {measured}, train"):
        hugging_face(path, pool="extra")
    with pytest.raises(ValueError, match="pool and test are both 'train'"):
        hugging_face(path, pool="train", test="train")


def test_columns_are_found_or_must_be_named(hf, tmp_path):
    made, _ = table(hf, 9, 0)
    two = made.add_column("coarse", [0] * 9).cast_column("coarse", hf.ClassLabel(names=["x", "y"]))
    path = saved(two, tmp_path / "two")
    columns = r"image \(Image\), label \(ClassLabel\), coarse \(ClassLabel\)"
    assert hugging_face(path).classes == hugging_face(path, label="label").classes == tuple(CLASSES)
    unnamed = saved(two.rename_column("label", "fine"), tmp_path / "unnamed")
    with pytest.raises(ValueError, match=r"fine, coarse may all be the label; rename one"):
        hugging_face(unnamed)
    with pytest.raises(ValueError, match=rf"image='label' is no column of kind Image; the columns are {columns}"):
        hugging_face(path, image="label", label="label")
    cells = [{"bytes": png(a), "path": None} for a in noise(9)]
    kinds = hf.Features({"image": hf.Image(), "more": hf.Image(), "label": hf.Value("string")})
    twice = hf.Dataset.from_dict({"image": cells, "more": cells, "label": ["a", "b", "c"] * 3}, features=kinds)
    pictures = saved(twice, tmp_path / "pictures")
    with pytest.raises(ValueError, match=r"2 columns may be the image; give image= one of .*more \(Image\)"):
        hugging_face(pictures)
    assert len(hugging_face(pictures, image="image").x) == 9


def test_splits_of_numbers_or_of_text_are_pool_and_test(hf, tmp_path):
    one = hf.Dataset.from_dict({"x": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], "label": ["a", "b", "a"], "id": [0, 1, 2]})
    data = load(saved(hf.DatasetDict({"train": one, "test": one.select([1, 0])}), tmp_path / "d"), normalise="none")
    assert (data.pool.tolist(), data.test.tolist()) == ([0, 1, 2], [3, 4])
    assert data.x[data.test].tolist() == [[2, 3], [0, 1]]
    rows = {"text": ["a good film", "so bad a film"] * 3, "label": ["a", "b"] * 3, "id": list(range(6))}
    words = hf.Dataset.from_dict(rows)  # ids of both splits count from 0
    data = load(saved(hf.DatasetDict({"train": words, "test": words}), tmp_path / "t"))
    assert (len(data.pool), len(data.test), data.classes) == (6, 6, ("a", "b"))


def test_labels_in_words_without_a_class_label(hf, tmp_path):
    made, _ = table(hf, 9, 0)
    words = made.remove_columns("label").add_column("category", [f"kind {10 - k % 2}" for k in range(9)])
    data = hugging_face(saved(words, tmp_path / "d"))
    assert data.classes == ("kind 9", "kind 10")
    assert data.y.tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 1]


def test_hidden_labels_are_an_error(hf, tmp_path):
    (train, _), (test, _) = table(hf, 9, 0), table(hf, 6, 1)
    hidden = test.remove_columns("label").add_column("label", [-1] * 6).cast(train.features)
    path = saved(hf.DatasetDict({"train": train, "test": hidden}), tmp_path / "d")
    with pytest.raises(ValueError, match="6 of 6 rows of 'test' have no label in 'label'"):
        hugging_face(path)
    assert len(hugging_face(path, pool="train").x) == 9


def test_broken_rows_are_named_and_skipped_on_request(hf, tmp_path, monkeypatch):
    cells = [{"bytes": png(a), "path": None} for a in noise(9)]
    cells[2] = {"bytes": cells[2]["bytes"][:60], "path": None}
    cells[4] = None
    cells[5] = {"bytes": None, "path": "/etc/passwd"}
    made, _ = table(hf, 9, 0, cells=cells)
    # Saving puts in what stands at a path; a stranger's dataset may have been saved without.
    monkeypatch.setattr(hf.Image, "embed_storage", lambda self, storage, *_, **__: storage)
    path = saved(made, tmp_path / "d")
    with pytest.raises(
        ValueError, match=r"3 of 9 .*row\[2\] \(.*row\[4\] \(no pict.*row\[5\] \(only the path /etc/passw"
    ):
        hugging_face(path)
    data = hugging_face(path, skip_broken=True)
    np.testing.assert_array_equal(data.x.numpy().transpose(0, 2, 3, 1), noise(9)[[0, 1, 3, 6, 7, 8]])
    assert data.y.tolist() == [0, 1, 0, 0, 1, 2]
    assert any(note.startswith("3 of 9 pictures cannot be read") for note in data.notes)


def test_classes_that_never_occur_are_noted(hf, tmp_path):
    made, _ = table(hf, 9, 0)
    data = hugging_face(saved(made.filter(lambda row: row["label"] != 2), tmp_path / "d"))
    assert data.classes == tuple(CLASSES)
    assert "1 class (emu) has no picture" in data.notes


def test_what_is_no_saved_dataset(hf, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        hugging_face(tmp_path / "none")
    with pytest.raises(ValueError, match="cannot be read as a dataset saved to disk"):
        hugging_face(tmp_path)
    path = saved(table(hf, 9, 0)[0], tmp_path / "d")
    for part in path.glob("*.arrow"):
        part.write_bytes(part.read_bytes()[:200])
    with pytest.raises(ValueError, match="cannot be read as a dataset saved to disk"):
        hugging_face(path)


def test_without_the_package_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="needs the package datasets"):
        hugging_face(tmp_path)


class Toy(Dataset):
    """Items from a list; ``give`` makes of each what the dataset gives."""

    def __init__(self, x, give=lambda a: a, y=None) -> None:
        self.x, self.give, self.reads = x, give, 0
        self.y = [k % 3 for k in range(len(x))] if y is None else y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i):
        self.reads += 1
        return self.give(self.x[i]), self.y[i]


GIVES = {
    "pil": Image.fromarray,
    "array": lambda a: a,
    "array first": lambda a: a.transpose(2, 0, 1),
    "tensor": lambda a: torch.from_numpy(a.transpose(2, 0, 1).copy()),
    "to tensor": lambda a: torch.from_numpy(a.transpose(2, 0, 1).copy()) / 255,
    "float array": lambda a: a.astype(np.float32) / 255,
}


@pytest.mark.parametrize("how", GIVES)
def test_every_kind_of_picture_becomes_its_bytes(how):
    x = noise(30, size=7)
    data = from_torch(Toy(x, GIVES[how]), classes=CLASSES)
    assert data.x.dtype == torch.uint8
    np.testing.assert_array_equal(data.x.numpy().transpose(0, 2, 3, 1), x)
    assert data.y.tolist() == [k % 3 for k in range(30)]
    assert data.classes == tuple(CLASSES)
    assert (len(data.pool), len(data.test)) == (24, 6)
    assert data.notes == ()


def test_each_item_is_read_once_besides_the_probes():
    toy = Toy(noise(200))
    from_torch(toy)
    assert toy.reads == 200 + 3 * 16


def test_grey_stays_grey_until_a_colour_comes():
    grey = noise(30, channels=1)[..., 0]
    assert tuple(from_torch(Toy(grey)).x.shape) == (30, 1, 6, 6)
    assert tuple(from_torch(Toy(grey), channels=3).x.shape) == (30, 3, 6, 6)
    mixed = [*grey[:20], *noise(10)]
    data = from_torch(Toy(mixed))
    np.testing.assert_array_equal(data.x[5].numpy(), np.stack([grey[5]] * 3))
    np.testing.assert_array_equal(data.x[25].numpy().transpose(1, 2, 0), mixed[25])


def test_another_dataset_measures():
    data = from_torch(Toy(noise(9)), Toy(noise(6, seed=1)))
    assert (data.pool.tolist(), data.test.tolist()) == (list(range(9)), list(range(9, 15)))
    assert data.classes == ("0", "1", "2")
    np.testing.assert_array_equal(data.x[data.test].numpy().transpose(0, 2, 3, 1), noise(6, seed=1))
    toy = Toy(noise(9))
    with pytest.raises(ValueError, match="test is the dataset itself"):
        from_torch(toy, toy)


def test_classes_are_those_of_the_dataset_even_through_a_subset():
    toy = Toy(noise(30))
    toy.classes = CLASSES
    data = from_torch(Subset(toy, [0, 1, 2, 3, 4, 5, 9, 10, 11]))
    assert data.classes == tuple(CLASSES)
    with pytest.raises(ValueError, match="a label is 2 and there are 2 classes"):
        from_torch(toy, classes=["a", "b"])
    with pytest.raises(ValueError, match="same name"):
        from_torch(toy, classes=["a", "b", "a"])


def test_vectors_and_normalised_pictures_stay_floats():
    rows = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    data = from_torch(TensorDataset(rows, torch.arange(12) % 2))
    assert data.x.dtype == torch.float32
    assert torch.equal(data.x, rows)
    normalised = from_torch(Toy(noise(12), lambda a: (torch.from_numpy(a.transpose(2, 0, 1).copy()) / 255 - 0.5) / 0.3))
    assert normalised.x.dtype == torch.float32
    assert "pixels are floats as the dataset gives them, not bytes" in normalised.notes
    with pytest.raises(ValueError, match=r"size is 4.*gives floats that are no bytes"):
        from_torch(TensorDataset(rows, torch.arange(12) % 2), size=4)


def own_generator():
    rng = np.random.default_rng(0)
    return lambda a: a[:, ::-1] if rng.random() < 0.5 else a


RANDOM = {
    "torch": lambda a: a[:, ::-1] if torch.rand(()) < 0.5 else a,
    "numpy": lambda a: a[:, ::-1] if np.random.rand() < 0.5 else a,  # noqa: NPY002
    "python": lambda a: a[:, ::-1] if random.random() < 0.5 else a,
    "rare": lambda a: a[:, ::-1] if random.random() < 1e-9 else a,
    "a generator of its own": own_generator(),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_random_transforms_are_refused_and_generators_put_back(kind):
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    with pytest.raises(ValueError, match="without its augmentation: training augments by itself"):
        from_torch(Toy(noise(30), RANDOM[kind]))
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    np.testing.assert_array_equal(np.random.get_state()[1], before[2])  # noqa: NPY002
    with pytest.raises(ValueError, match=r"^test .*without its augmentation"):
        from_torch(Toy(noise(30)), Toy(noise(30), RANDOM[kind]))


def test_sizes_that_differ_and_size():
    x = [*noise(10), *noise(5, size=9)]
    with pytest.raises(ValueError, match=r"2 sizes, width × height: 6×6 \(10\), 9×9 \(5\); give a size in pixels"):
        from_torch(Toy(x))
    assert tuple(from_torch(Toy(x), size=4).x.shape) == (15, 3, 4, 4)


def test_items_that_fail_are_named_and_skipped_on_request():
    def give(a):
        if a[0, 0, 0] == 7:
            raise OSError("image file is truncated")
        return a

    x = noise(40)
    x[:, 0, 0, 0] = 1
    x[[3, 21], 0, 0, 0] = 7
    with pytest.raises(ValueError, match=r"2 of 40 items cannot be read: item 3 \(image file is truncated\), item 21"):
        from_torch(Toy(x, give))
    data = from_torch(Toy(x, give), skip_broken=True)
    keep = [k for k in range(40) if k not in (3, 21)]
    np.testing.assert_array_equal(data.x.numpy().transpose(0, 2, 3, 1), x[keep])
    assert data.y.tolist() == [k % 3 for k in keep]
    assert any("2 of 40 items cannot be read" in note for note in data.notes)


class Stream(IterableDataset):
    def __iter__(self):
        yield from ()


def test_what_is_no_labelled_map_style_dataset():
    with pytest.raises(TypeError, match="the dataset is a Stream; expected a map-style dataset"):
        from_torch(Stream())
    with pytest.raises(ValueError, match="has no items"):
        from_torch(Toy([]))
    with pytest.raises(ValueError, match=r"a tuple .*; expected \(picture, class\)"):
        from_torch(TensorDataset(torch.zeros(5, 2)))
    with pytest.raises(ValueError, match="dict with the keys image, label"):
        from_torch([{"image": noise(1)[0], "label": 0}] * 5)
    for label in (0.5, "cat", [0, 1], -1, True):
        with pytest.raises(ValueError, match=r"the label of item 0 is .*expected one integer from 0"):
            from_torch(Toy(noise(6), y=[label] * 6))
    with pytest.raises(ValueError, match="one class"):
        from_torch(Toy(noise(6), y=[0] * 6))
    with pytest.raises(ValueError, match=r"shape \(4, 6, 6\).*expected pictures of 1 or 3 channels"):
        from_torch(Toy(noise(6, channels=4), lambda a: torch.from_numpy(a.transpose(2, 0, 1).copy())))
    with pytest.raises(ValueError, match="above the limit of"):
        from_torch(Toy(noise(6)), most=6 * 108 - 1)
    with pytest.raises(ValueError, match="above the limit of"):
        from_torch(Toy(list(np.ones((6, 4)))), most=6 * 16 - 1)
