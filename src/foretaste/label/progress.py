"""How the labelling goes: what error is left, when to train and to stop, what questions saved, what a label changes.

The honest measure needs no held-out set: every label was predicted just before it was taught. But strategies ask for
what is uncertain, so these predictions are wrong more often than those of the pool. The model says how often it
expects to be wrong on each item; the ratio of the errors it made to those it expected corrects what it expects of the
pool.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from foretaste.errors import counted
from foretaste.label.book import HALF, LabelBook, LabelKind
from foretaste.label.live_model import LiveModel, carry_means, wrong_chances
from foretaste.label.pool_model import PoolModel
from foretaste.lookahead import PoolEvidence, State, ridge_factor

RECENT = 50  # predictions that a running accuracy is taken over
PRIOR_ERRORS = 5.0  # expected and made errors that are added before their ratio is taken


def learning_curve(book: LabelBook, kind: LabelKind) -> list[dict[str, Any]]:
    """For each predicted label, in order: how many labels there were, whether it was right, and the running accuracy.

    In regression: the squared error, and its running mean.
    """
    order = {p: n for n, p in enumerate(book.labels)}
    curve: list[dict[str, Any]] = []
    window: list[float] = []
    for p in sorted(book.predictions.values(), key=lambda p: order.get(p.position, 0)):
        y = book.labels[p.position]
        hit = (p.predicted - y) ** 2 if kind.regression else float(not book.missed(p))
        window = [*window, hit][-RECENT:]
        name = "error" if kind.regression else "accuracy"
        curve.append({"labels": order[p.position], "value": hit, name: sum(window) / len(window)})
    return curve


def expected_error(model: LiveModel, book: LabelBook) -> dict[str, float]:
    """The share of open items whose class is expected to be wrong, as the model says and corrected by its record."""
    at = model.open_rows(book)
    if not len(at):
        return {"model": 0.0, "corrected": 0.0, "ratio": 1.0}
    state = model.follow(book)
    said = float(wrong_chances(state, model.scale(book), at.to(state.pool_mean.device), model.kind.multi).mean())
    recent = list(book.predictions.values())[-RECENT:]
    made = sum(map(book.missed, recent))
    ratio = (made + PRIOR_ERRORS) / (sum(p.error for p in recent) + PRIOR_ERRORS)
    return {"model": said, "corrected": min(1.0, said * ratio), "ratio": ratio}


# --- whether to train anew, and whether to stop ---

FEWEST_NEW = 5  # labels since the training below which it is not worth another
# Labels since the training, as a share of those it had, from which it is (docs/learner.md, When to train anew).
NEW_SHARE, NEW_SHARE_CE = 1.0, 0.5
STOP_PREDICTIONS = 20  # predicted labels without which no advice to stop is given


def measure_drift(model: LiveModel, book: LabelBook, trainings: int) -> dict[str, Any]:
    """How far the labels since the training have taken the linearised network, and whether to train anew."""
    state = model.follow(book)
    fixed = sum(book.labels.get(p) == y for p, y in model.trained.items())
    new, changed = len(book.labels) - fixed, len(model.trained) - fixed
    f_MC, mean_MC = (state.criterion.responses(f) for f in (model.after_training, state.pool_mean))
    spread = float((f_MC - f_MC.mean(0)).square().mean().sqrt()) or 1.0
    moved = float((mean_MC - f_MC).square().mean().sqrt()) / spread
    since = [p for p in book.predictions.values() if p.trained == trainings]
    found: dict[str, Any] = {
        "trained_on": len(model.trained),
        "new": new,
        "changed": changed,
        "moved": moved,
        "flipped": None if model.kind.regression else share_changed(model.kind, f_MC, mean_MC),
        "surprise": sum(p.surprise for p in since) / len(since) if since else None,
        "wrong": None if model.kind.regression else sum(map(book.missed, since)),
        "wrong_expected": None if model.kind.regression else sum(p.error for p in since),
    }
    found["retrain"], found["reason"] = _advise_training(
        found, NEW_SHARE if state.criterion.quadratic else NEW_SHARE_CE
    )
    return found


def share_changed(kind: LabelKind, before_MC: Tensor, after_MC: Tensor) -> float:
    """The share of items that two outputs call differently."""
    pairs = list(zip(kind.decide(before_MC), kind.decide(after_MC)))
    return sum(a != b for a, b in pairs) / len(pairs)


def _advise_training(found: dict[str, Any], share: float) -> tuple[bool, str]:
    new, old = found["new"] + found["changed"], found["trained_on"]
    said = f"{counted(new, 'label is', 'labels are')} new or changed since the network was trained"
    if new < FEWEST_NEW:
        return False, f"{said}; that is too few to matter"
    if new >= share * old:
        return True, f"{said} on {old}"
    return False, f"{said} on {old}, and it has absorbed them"


def advise_stop(model: LiveModel | None, book: LabelBook, goal: float) -> dict[str, Any]:
    """Whether to stop, why, and the error that is left."""
    if model is None:
        return {"stop": False, "reason": "there is no trained network yet", "error": None}
    if len(book.labels) + len(book.pending) + len(book.ignored) == len(model.pool):
        return {"stop": True, "reason": "every item is labelled, out or ignored", "error": None}
    if model.kind.regression:
        sigma = float((model.scale(book) * model.follow(book).variance_blocks[:, 0, 0].clamp_min(0)).mean().sqrt())
        return {"stop": False, "reason": "regression has no goal", "error": {"deviation": sigma}}
    error, predicted = expected_error(model, book), len(book.predictions)
    if predicted < STOP_PREDICTIONS:
        many = counted(predicted, "label was", "labels were")
        reason = f"{many} predicted before the answer; advice to stop needs {STOP_PREDICTIONS}"
        return {"stop": False, "reason": reason, "error": error}
    left = error["corrected"]
    reason = f"about {100 * left:.1f} % of the open items are expected to be wrong; the goal is {100 * goal:.1f} %"
    return {"stop": left <= goal, "reason": reason, "error": error}


# --- what the pool is worth ---

DOUBTED_ANSWERS = 20  # predictions since the training from which they may speak against leave-one-out
DOUBTED_CHANCE = 0.01


def describe_pool(model: PoolModel, book: LabelBook, trainings: int) -> dict[str, Any]:
    """What was chosen, what the pool is worth, and whether the answers since the training speak against it."""
    model.helps(book)
    e = model.evidence
    text = "The pool is not used: it predicts a label left out no better."
    if e.gamma:
        text = f"The pool is used: {describe_worth(e)}."
    if not model.trained:
        text = "The pool is not used yet: there are no labels to weigh it by."
    found = e.as_dict() | {"text": text.replace("%", " %"), "warning": None}
    since = [p for p in book.predictions.values() if p.trained == trainings][-RECENT:]
    if e.gamma and not model.kind.regression and len(since) >= DOUBTED_ANSWERS:
        wrong, expected = sum(map(book.missed, since)), sum(p.error for p in since)
        if chance_of_errors(wrong, [p.error for p in since]) < DOUBTED_CHANCE:
            found["warning"] = (
                f"Of the last {len(since)} answers it had {wrong} wrong and counted on {expected:.0f}: items that look "
                "alike may be of different classes. Check what it is sure of"
            )
    return found


def describe_worth(e: PoolEvidence) -> str:
    """What leave-one-out says. γ has the least squared error: with few labels not always the most hits."""
    if e.hits is None or e.hits_without is None or e.hits < e.hits_without:
        return f"a label left out is missed by {e.error**0.5:.3g} with it, {e.without**0.5:.3g} without"
    return f"a label left out is predicted right {e.hits:.0%} of the time with it, {e.hits_without:.0%} without"


def chance_of_errors(made: int, chances: Sequence[float]) -> float:
    """The chance of so many errors or more, if each is made with the chance that the model gave it."""
    count = [1.0]  # of 0, 1, ... errors
    for p in chances:
        count = [(1 - p) * a + p * b for a, b in zip([*count, 0.0], [0.0, *count])]
    return sum(count[made:])


# --- what the order of the questions has saved ---
#
# Labels of m items drawn at random say what random order reaches: j of them predict the others, for each j and many
# orders. The answers to questions predict the same m items. With A = Θ + λI in some order and its Cholesky factor R,
# the first n labels predict V_nᵀ W_n, V = R⁻¹Θ_·m, W = R⁻¹(Y − 1/C): a running sum over n, so all n cost one factor.
# One answer is worth s labels in random order, where s makes the two curves fall on each other: a whole curve is
# compared, for a single level may be reached early or late by chance.

SAVED_RIDGE = 0.03  # of the mean diagonal of Θ
FEWEST_DRAWN, FEWEST_ASKED = 20, 10
RANDOM_ORDERS, RESAMPLES = 40, 400
WORTHS = [2 ** (k / 8) for k in range(-16, 33)]  # labels in random order that an answer may be worth: 1/4 to 16


def compare_random(theta_NN: Tensor, y_N: Tensor, C: int, asked: Sequence[int], drawn: Sequence[int]) -> dict[str, Any]:
    """How many answers, in the order ``asked``, do what the labels ``drawn`` at random do, less one.

    ``asked`` and ``drawn`` are rows of Θ. The 95 % interval is of 400 resamples of what is drawn.
    """
    m, draw, at_m = len(drawn), torch.Generator().manual_seed(0), torch.as_tensor(drawn)
    right_jm, of_jm = torch.zeros(2, m - 1, m, dtype=torch.float64)
    for _ in range(RANDOM_ORDERS):
        order_m = torch.randperm(m, generator=draw)
        later_jm = torch.ones(m, m, dtype=torch.float64).triu(1)[:-1]  # after the first j, those that come later
        hits_jm = running_hits(theta_NN, y_N, C, at_m[order_m][:-1], at_m[order_m])
        right_jm[:, order_m] += hits_jm * later_jm
        of_jm[:, order_m] += later_jm
    asked_nm = running_hits(theta_NN, y_N, C, torch.as_tensor(asked[: int((m - 1) / WORTHS[0])]), at_m)
    asked_nm = torch.cat([torch.full((1, m), 1 / C, dtype=torch.float64), asked_nm])  # of none
    picks_Bm = torch.full((RESAMPLES, m), 1 / m).multinomial(m, replacement=True, generator=draw)
    weights_mB = torch.nn.functional.one_hot(picks_Bm, m).sum(1).T.double()
    weights_mB = torch.cat([torch.ones(m, 1, dtype=torch.float64), weights_mB], 1)  # first as it is
    random_jB = (right_jm @ weights_mB) / (of_jm @ weights_mB).clamp_min(1e-9)
    asked_nB, j = asked_nm @ weights_mB / m, torch.arange(1, m, dtype=torch.float64)
    worths = [s for s in WORTHS if (m - 1) / s <= len(asked_nm) - 1]
    misfit = []
    for s in worths:
        low_j = (j / s).floor().long().clamp_max(len(asked_nm) - 2)
        part_j1 = (j / s - low_j)[:, None]
        misfit.append(((1 - part_j1) * asked_nB[low_j] + part_j1 * asked_nB[low_j + 1] - random_jB).square().mean(0))
    worth_B = torch.tensor(worths, dtype=torch.float64)[torch.stack(misfit).argmin(0)]
    need_B = ((m - 1) / worth_B).round()
    low, high = (m - 1 - torch.quantile(need_B[1:], torch.tensor([0.975, 0.025], dtype=torch.float64))).tolist()
    return {
        "random": m - 1,
        "asked": int(need_B[0]),
        "saved": m - 1 - int(need_B[0]),
        "low": round(low),
        "high": round(high),
        "accuracy": float(random_jB[-1, 0]),
        "worth": float(worth_B[0]),
    }


def running_hits(theta_NN: Tensor, y_N: Tensor, C: int, labels_n: Tensor, at_m: Tensor) -> Tensor:
    """(n, m): whether the first 1, 2, ..., n labels predict the class of each item at m."""
    e_nC = torch.nn.functional.one_hot(y_N[labels_n], C).to(theta_NN) - 1 / C
    root = ridge_factor(theta_NN[labels_n][:, labels_n], SAVED_RIDGE * float(theta_NN.diagonal().mean()))
    v_nm = torch.linalg.solve_triangular(root, theta_NN[labels_n][:, at_m], upper=False)
    w_nC = torch.linalg.solve_triangular(root, e_nC, upper=False)
    f_mC, hits = torch.zeros(len(at_m), C).to(theta_NN), list[Tensor]()
    for v_m, w_C in zip(v_nm, w_nC):
        f_mC = f_mC.addr(v_m, w_C)
        hits.append(f_mC.argmax(1) == y_N[at_m])
    return torch.stack(hits).double().cpu()


# --- why an item is worth a label ---

STANDS_FOR = 0.25  # squared correlation from which an item stands for another


def explain_item(model: LiveModel, book: LabelBook, position: int, label: float | None, most: int) -> dict[str, Any]:
    """What a label of an item changes on the pool. JSON can hold it.

    The label is ``label``; else the one it has; else its likeliest. The item counts as not labelled before.

    An item stands for those whose outputs cannot move without its own: squared correlation of S, which follows from
    the variance that its label would take away, ρ² = (drop_k / drop_j)(S_jj / S_kk).
    """
    m, kind, ids = model.row[position], model.kind, model.pool.ids
    state = state_without(model, book, position)
    before = state.pool_mean
    if label is None:
        # In regression the likeliest label is the mean itself, which changes nothing: one deviation above it.
        above = math.sqrt(model.scale(book) * float(state.u[m])) if kind.regression else 0.0
        likely = float(before[m, 0]) + above if kind.regression else kind.decide(before[m : m + 1])[0]
        label = book.labels.get(position, likely)
    open_M = torch.tensor(
        [p != position and p not in book.labels and p not in book.ignored for p in model.at_M], device=before.device
    )
    after = state.condition(m, model.kept_label(label)).pool_mean
    was, then = state.criterion.responses(before), state.criterion.responses(after)
    moved_M = (then - was).abs().amax(1)
    if kind.regression:
        changed = (moved_M > 0) & open_M
    else:
        differ = [a != b for a, b in zip(kind.decide(was), kind.decide(then))]
        changed = torch.tensor(differ, device=open_M.device) & open_M
    order = moved_M.masked_fill(~changed, -1).argsort(descending=True)[: min(most, int(changed.sum()))]
    from_n, to_n = (kind.decide(f_MC[order]) for f_MC in (was, then))
    found: dict[str, Any] = {
        "id": ids[position],
        "label": kind.show(label),
        "changes": int(changed.sum()),
        "moved": float(moved_M[open_M].sum()),
        "changed": [
            {
                "id": ids[model.at_M[i]],
                "from": kind.show(a),
                "to": kind.show(b),
                "by": float(moved_M[i]),
            }
            for i, a, b in zip(order.tolist(), from_n, to_n)
        ],
    }
    var_M, left_M = (s.variance_blocks[:, 0, 0] for s in (state, state.condition(m, None)))
    drop_M = (var_M - left_M).clamp_min(0)
    alike_M = ((drop_M / drop_M[m].clamp_min(1e-300)) * (var_M[m] / var_M.clamp_min(1e-300))).clamp(0, 1)
    alike_M = alike_M.masked_fill(~open_M, 0)
    near = alike_M.argsort(descending=True)[:most].tolist()
    found["stands_for"] = int((alike_M >= STANDS_FOR).sum())
    found["nearest"] = [{"id": ids[model.at_M[i]], "alike": float(alike_M[i])} for i in near if alike_M[i] > 0]
    if kind.regression:
        found["mean"], found["deviation"] = float(before[m, 0]), math.sqrt(model.scale(book) * float(state.u[m]))
    if kind.multi:
        found["questions"] = ask_each_class(state, m, open_M, kind)
    if not kind.regression:
        p_C = model.probabilities(before[m : m + 1])[0]
        found["probabilities"] = {str(name): float(p) for name, p in zip(kind.names or range(kind.C), p_C)}
    return found


def ask_each_class(state: State, m: int, open_M: Tensor, kind: LabelKind) -> dict[str, dict[str, int]]:
    """Class → how many open items would change their answer to it if item m says "yes", and if it says "no".

    One column of S serves all classes: f⁺_ic = mean_ic + S_im (y − mean_mc) / u_m, for each of them alone.
    """
    before_MC = state.pool_mean
    after = {
        word: state.condition(m, torch.full_like(before_MC[m], y)).pool_mean for word, y in (("yes", 1.0), ("no", 0.0))
    }
    moved = {
        word: (((f_MC > HALF) != (before_MC > HALF)) & open_M[:, None]).sum(0).tolist() for word, f_MC in after.items()
    }
    return {str(name): {word: moved[word][c] for word in moved} for c, name in enumerate(kind.names or range(kind.C))}


def state_without(model: LiveModel, book: LabelBook, position: int) -> State:
    """The state as if the item were neither labelled nor out."""
    state, m = model.follow(book), model.row[position]
    if any(j == m for j, _ in state.kept):
        free = state.release(m)
        if position in book.pending:
            carry_means(state, free)
        return free
    if position not in book.labels:
        return state
    others = {p: y for p, y in book.labels.items() if p != position}  # the network was trained on it: solved anew
    return model.follow(LabelBook(others, book.pending, book.ignored))
