"""Why an item is worth a label: what would change if it had one, and which items it stands for."""

import math
from typing import Any

import torch

from foretaste.label.book import LabelBook
from foretaste.label.live_model import LiveModel, carry_means
from foretaste.lookahead import State

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
        likely = float(before[m, 0]) + above if kind.regression else int(before[m].argmax())
        label = book.labels.get(position, likely)
    open_M = torch.tensor(
        [p != position and p not in book.labels and p not in book.ignored for p in model.at_M], device=before.device
    )
    after = state.condition(m, label).pool_mean
    was, then = state.criterion.responses(before), state.criterion.responses(after)
    moved_M = (then - was).abs().amax(1)
    if kind.regression:
        changed = (moved_M > 0) & open_M
        was_M, now_M = was[:, 0], then[:, 0]
    else:
        was_M, now_M = was.argmax(1), then.argmax(1)
        changed = (was_M != now_M) & open_M
    order = moved_M.masked_fill(~changed, -1).argsort(descending=True)[: min(most, int(changed.sum()))]
    found: dict[str, Any] = {
        "id": ids[position],
        "label": kind.show(label),
        "changes": int(changed.sum()),
        "moved": float(moved_M[open_M].sum()),
        "changed": [
            {
                "id": ids[model.at_M[i]],
                "from": kind.show(was_M[i].item()),
                "to": kind.show(now_M[i].item()),
                "by": float(moved_M[i]),
            }
            for i in order.tolist()
        ],
    }
    var_M, left_M = (s.variance_blocks[:, 0, 0] for s in (state, state.condition(m, None)))
    drop_M = (var_M - left_M).clamp_min(0)
    alike_M = ((drop_M / drop_M[m].clamp_min(1e-300)) * (var_M[m] / var_M.clamp_min(1e-300))).clamp(0, 1)
    alike_M = alike_M.masked_fill(~open_M, 0)
    near = alike_M.argsort(descending=True)[:most].tolist()
    found["stands_for"] = int((alike_M >= STANDS_FOR).sum())
    found["nearest"] = [{"id": ids[model.at_M[i]], "alike": float(alike_M[i])} for i in near if alike_M[i] > 0]
    if not kind.regression:
        p_C = state.criterion.class_probabilities(before[m])
        found["probabilities"] = {str(kind.show(c)): float(p) for c, p in enumerate(p_C)}
    return found


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
