"""Records and run folders made by hand, and a reader of pages."""

import json
from hashlib import sha256
from html.parser import HTMLParser

HOSTILE = '<script>alert("x")</script>&amp;$\\frac{$ \'"[bold]'
TOPS = {"gain": 0.9, "margin": 0.8, "random": 0.7}


def record(arm="random", seed=0, cycle=0, *, last=2, **over):
    asks = cycle < last
    return {
        "arm": arm,
        "against": None,
        "seed": seed,
        "cycle": cycle,
        "labelled": 20 + 10 * cycle,
        "labelled_ids": [seed, 100 + seed],
        "accuracy": 0.5,
        "residual": 1e-4,
        "interpolates": True,
        "candidates": 50 if asks else 0,
        "queried": [7, 3] if asks else [],
        "predicted": [1, 2] if asks else [],
        "labels": [1, 0] if asks else [],
        "scale": None,
        "ratio": 10.0,
        "ridge": None,
        "cost": {
            "train": 0.4,
            "measure": 0.01,
            "query": 0.02 if asks else None,
            "stages": {"total": 0.02, "kernel": 0.015, "score": 0.004} if asks else {},
            "peak_memory": 123_000_000,
        },
        "config": {},
        "versions": {"python": "3.12.1", "torch": "2.13.0", "device": "cpu x86_64"},
    } | over


def wobble(arm, seed, cycle):
    """Chance, made by hand: no two arms differ by the same in every seed, as intervals without width decide nothing."""
    return (seed * 7 + cycle + arm) % 3 + 0.1 * (seed * (arm + 2) % 7)


def records(tops=TOPS, seeds=3, noise=0.004, last=2, **over):
    """Each arm at its own height after the first cycle, with a wobble by seed."""
    return [
        record(name, s, c, last=last, accuracy=0.5 if c == 0 else top + noise * wobble(k, s, c), **over)
        for k, (name, top) in enumerate(tops.items())
        for s in range(seeds)
        for c in range(last + 1)
    ]


def write_run(folder, rows, *, seeds=(0, 1, 2), cycles=2, arms=None, told=(), study=(), data="digits", init=20):
    """A run's folder as ``foretaste run`` leaves it."""
    names = list(dict.fromkeys(r.get("arm", "a") for r in rows)) if arms is None else arms
    plain = {
        "title": "A study",
        "notes": "What is the paper's.",
        "seeds": list(seeds),
        "experiment": "loop",
        "arms": [{"name": name} for name in names],
        "data": {"name": data, "folder": str(folder)},
        "labels": {"init": init, "per_cycle": 10, "cycles": cycles, "subset": None},
    } | dict(study)
    rest = {
        "classes": ["zero", "one", "two"],
        "about": {"command": "foretaste run x"},
        "data": data,
        "data_notes": [],
        "standin": None,
    } | dict(told)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps({"study": plain} | rest), encoding="utf-8")
    for r in rows:
        path = folder / "records" / sha256(r.get("arm", "a").encode()).hexdigest()[:8] / f"{r['seed']}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(r) + "\n")
    return folder


def fidelity_records(correlation=0.95, rank=0.9, interpolates=True, agreement=0.99, **about):
    """What foretaste.study.fidelity returns, with numbers of one's choice."""
    said = {"output": "signs", "ridge_share": 0.0048, "misfit": True, "plain": False, "precision": "float32"}
    plain = {"output": "sum", "ridge_share": 1e-6, "misfit": False, "plain": True, "precision": "float32"}
    numbers = {"probabilities": None, "error": 0.3, "slope": 1.1, "rank": rank, "with_drift": 0.9, "seconds": 0.1}
    return [
        {
            "kind": "about", "loss": "l2", "L": 40, "U": 100, "W": 50, "C": 10, "parameters": 1000, "device": "cpu",
            "candidates": ["<b>", *"bcdefgh"], "repeats": 2, "residual": 1e-6 if interpolates else 0.05,
            "interpolates": interpolates, "agreement": agreement, "ceiling": agreement**0.5, "drift": 0.1,
            "change": 1.0, "train": {"loss": "l2"}, "seconds": 3.0, "seed": 0,
            "query": {"output": "signs", "ridge": "misfit"},
        } | about,
        {"kind": "retraining", "repeat": 0, "candidate": "<b>", "label": 1, "whose": "likeliest", "residual": 1e-6,
         "interpolates": True, "seconds": 0.1, "moved": 1.0},
        {"kind": "setting", **said, "ridge": 1e-5, "own": True, "correlation": correlation} | numbers,
        {"kind": "setting", **plain, "ridge": 1e-5, "own": False, "correlation": 0.3} | numbers,
        {"kind": "skipped", **plain, "output": "full", "own": False, "why": "needs 12 GB & more"},
        {"kind": "points", "of": 3, **said, "predicted": [0.1, -0.2, 0.3], "real": [0.1, -0.1, 0.2],
         "scores": [[1.0, 2.0], [1.5, 2.5]]},
    ]  # fmt: skip


class Page(HTMLParser):
    """Collects what a browser would run or fetch, and checks that tags are closed in order."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self):
        super().__init__()
        self.open, self.scripts, self.fetched, self.text, self.ids, self.tags = [], 0, [], "", [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.scripts += tag == "script" or any(name.startswith("on") for name, _ in attrs)
        self.fetched += [v for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith(("data:", "#"))]
        self.ids += [v for k, v in attrs if k == "id"]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read_page(path):
    seen = Page()
    seen.feed(path.read_text(encoding="utf-8"))
    seen.close()
    assert seen.open == []
    assert (seen.scripts, seen.fetched) == (0, [])
    assert len(seen.ids) == len(set(seen.ids))
    assert "nan" not in seen.text.casefold().split()
    return seen
