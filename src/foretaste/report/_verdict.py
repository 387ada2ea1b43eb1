"""Whether to trust look-ahead on a network, in words, from the records of ``foretaste.study.fidelity``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TRUST, CARE = 0.9, 0.6  # of the correlation between predicted and real changes
RANKED = 0.8  # of the candidates' ranking, if chance would not give it either
NOISY = 0.8  # two retrainings that agree less leave little to predict


@dataclass(frozen=True)
class Verdict:
    level: str  # "trust", "care", "no"
    headline: str
    lines: tuple[str, ...]  # sentences, the most important first
    warnings: tuple[str, ...] = ()


def of_kind(records: Sequence[Any], kind: str) -> list[Any]:
    return [r for r in records if r["kind"] == kind]


def own(records: Sequence[Any]) -> Any | None:
    """The settings of ``ft.query`` unless told, or the first that were tried."""
    tried = of_kind(records, "setting")
    return next((s for s in tried if s["own"]), tried[0] if tried else None)


def best(records: Sequence[Any]) -> Any | None:
    tried = [s for s in of_kind(records, "setting") if s["correlation"] is not None]
    return max(tried, key=lambda s: s["correlation"], default=None)


def verdict(records: Sequence[Any]) -> Verdict:
    """Thresholds are ours, and stated: 0.9 and 0.6."""
    about, at = of_kind(records, "about")[0], own(records)
    r = None if at is None else at["correlation"]
    level = "no" if r is None or r < CARE else "care" if r < TRUST else "trust"
    why = (
        "" if about["interpolates"] or level == "trust" else ": the network has not learned its labels, train it longer"
    )
    ranked = at is not None and at["rank"] is not None and at["rank"] >= max(RANKED, chance(len(about["candidates"])))
    if r is None:
        said = "Nothing could be compared: do not trust look-ahead here"
    elif level == "trust":
        said = f"Predictions agree with retraining at {r:.2f}: trust look-ahead here"
    elif level == "care":
        said = f"Predictions agree with retraining at {r:.2f}: trust look-ahead with care{why}"
    elif ranked and at is not None:
        level = "care"
        both = f"Outputs agree with retraining at {r:.2f} only, the ranking at {at['rank']:.2f}"
        said = f"{both}: trust no more than the ranking{why}"
    else:
        said = f"Predictions agree with retraining at {r:.2f} only: do not trust look-ahead here{why}"
    lines = [_what(about, at), _rank(about, at), _better(records, at), _scale(records), _limits()]
    return Verdict(level, said, tuple(filter(None, lines)), tuple(_warnings(records, about)))


def setting(s: Any) -> str:
    return f'output="{s["output"]}", ridge {s["ridge_share"]:.0e} of the mean diagonal, {s["precision"]}'


def _what(about: Any, at: Any | None) -> str:
    n, times = len(about["candidates"]), about["repeats"]
    text = (
        f"{n} {'candidate was' if n == 1 else 'candidates were'} labelled, each in two ways, and the network really "
        f"retrained on {about['L']} + 1 points, {'once' if times == 1 else f'{times} times'} each; changes were seen "
        f"on {about['W']} other points of the pool."
    )
    if at is not None and at["correlation"] is not None:
        text += f" With {setting(at)}, predicted and real changes of the outputs correlate at {at['correlation']:.2f}"
        if at["probabilities"] is not None:
            text += f" (of the probabilities: {at['probabilities']:.2f})"
        if at["slope"] is not None:
            text += f"; real changes are {at['slope']:.2f} times those predicted"
        text += "."
    return text


def _rank(about: Any, at: Any | None) -> str:
    n = len(about["candidates"])
    if at is None or at["rank"] is None:
        return "Too few candidates to say how well their ranking agrees."
    text = (
        f"The candidates' ranking by how much they move the network agrees at {at['rank']:.2f} (Spearman); with {n} of "
    )
    if chance(n) == 1:
        return f"{text}them any agreement may be chance."
    return f"{text}them chance alone gives beyond ±{chance(n):.2f} one time in twenty."


def chance(n: int) -> float:
    """What Spearman's of n unrelated pairs exceeds, in size, one time in twenty (its standard deviation × 1.96)."""
    return min(1.0, 1.96 / (n - 1) ** 0.5) if n > 1 else 1.0


def _better(records: Sequence[Any], at: Any | None) -> str:
    top, n = best(records), len(of_kind(records, "setting"))
    if top is None or at is None or top is at or at["correlation"] is None or n < 2:
        return ""
    if top["correlation"] - at["correlation"] < 0.02:
        return f"No other of the {n} settings tried does clearly better."
    text = f"The best of the {n} settings tried is {setting(top)}: {top['correlation']:.2f}"
    return f"{text}, found on these candidates themselves."


def _scale(records: Sequence[Any]) -> str:
    found = of_kind(records, "calibration")
    if not found:
        return ""
    parts = []
    for c in found:
        errors = {g["theta_scale"]: g["error"] for g in c["grid"]}
        end = " (the end of the grid)" if c["best"] in (min(errors), max(errors)) else ""
        at_one = f", {errors[1.0]:.2f} without" if errors.get(1.0) is not None else ""
        parts.append(f"{c['best']:g}{end} for {c['output']} (error {errors[c['best']]:.2f}{at_one})")
    return f"Cross-entropy: the scale of Θ that fits best, theta_scale= of ft.linearize, is {'; '.join(parts)}."


def _limits() -> str:
    return (
        f"Trust is said from a correlation of {TRUST} on, care from {CARE}; below that, no trust, unless the ranking "
        f"agrees at {RANKED} or more and better than by chance."
    )


def _warnings(records: Sequence[Any], about: Any) -> list[str]:
    out = []
    if not about["interpolates"]:
        out.append(
            f"The network has not learned its labels: their mean squared residual is {about['residual']:.1e}. "
            "Look-ahead assumes that it has; train longer."
        )
    done = of_kind(records, "retraining")
    if missed := sum(not r["interpolates"] for r in done):
        out.append(f"{missed} of {len(done)} retrainings did not learn their labels; more --retrain-steps may help.")
    if about["agreement"] is not None and about["agreement"] < NOISY:
        out.append(
            f"Retraining is itself noisy: two of the same candidate by other seeds agree at {about['agreement']:.2f}, "
            f"so no prediction can reach more than {about['ceiling']:.2f}."
        )
    if about["drift"] > about["change"]:
        out.append(
            f"Training on with no new label moves the outputs more ({about['drift']:.2g}) than a label does "
            f"({about['change']:.2g}): the network had not come to rest."
        )
    return out
