"""Run studies one after another for a limited time; the same command again resumes.

    python results/run_slice.py --out runs --minutes 9 --processes 6 results/mnist.toml results/mnist14.toml

As `foretaste run`, but without an estimate, a page or a progress bar: it needs neither typer nor matplotlib.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from foretaste.study import about, prepared, read, run, smoke


def describe(folder: Path, study, config: str, processes: int, device: str) -> None:
    """study.json, which `foretaste report` reads."""
    data = prepared(study.data, "cpu")
    told = {
        "study": study.plain(),
        "classes": list(data.classes),
        "about": about(study, data, command=f"foretaste run {config}", processes=processes, device=device),
        "data": data.name,
        "data_notes": list(data.notes),
        "standin": None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seeds", type=int, nargs="*", help="those of the file unless told")
    parser.add_argument("--arms", nargs="*", help="those of the file unless told")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    began = time.monotonic()

    def seen(record) -> None:
        seconds = time.monotonic() - began
        if "accuracy" not in record:  # a check of the mathematics
            print(f"{seconds:6.1f} {json.dumps(record)[:160]}", flush=True)
            return
        c, wrong = record["cost"], "retried" if record["retries"] else "" if record["interpolates"] else "!"
        print(
            f"{seconds:6.1f} {record['arm']:20} {record['seed']} {record['cycle']} acc {record['accuracy']:.4f} "
            f"mse {record['residual']:.1e} {wrong} train {c['train']:.2f} measure {c['measure']:.2f} "
            f"query {c['query'] or 0:.2f} {c['peak_memory'] / 1e9:.1f} GB",
            flush=True,
        )

    for config in args.configs:
        left = args.minutes - (time.monotonic() - began) / 60
        if left <= 0:
            break
        study = read(config)
        study = smoke(study) if args.smoke else study
        study = replace(study, arms=tuple(a for a in study.arms if a.name in args.arms)) if args.arms else study
        folder = args.out / Path(config).stem
        describe(folder, study, config, args.processes, args.device)
        some = replace(study, seeds=tuple(args.seeds)) if args.seeds else study
        how = {"processes": args.processes, "devices": (args.device,), "seen": seen}
        while some is not None and (left := args.minutes - (time.monotonic() - began) / 60) > 0:
            try:
                records = run(some, folder, **how, minutes=left)
                print(f"{time.monotonic() - began:6.1f} {config}: {len(records)} of {some.size} records", flush=True)
                break
            except (RuntimeError, ValueError) as error:
                notes = getattr(error, "__notes__", [])
                print(f"{time.monotonic() - began:6.1f} FAILED {error}", *notes, sep="\n", flush=True)
                some = without_the_arm(some, str(error))


def without_the_arm(study, error: str):
    """The study without the arm that an error names: the others go on. None if no arm is left, or none is named."""
    arms = tuple(arm for arm in study.arms if f"arm {arm.name!r}," not in error)
    return replace(study, arms=arms) if arms and len(arms) < len(study.arms) else None


if __name__ == "__main__":
    main()
