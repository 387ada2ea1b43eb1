"""Plant small faults in the code, one at a time, and see whether the tests notice: ``make mutants``.

A fault is one small change of one expression: a comparison turned, a sign, a factor, an index off by one, a condition
dropped. Faults are drawn from the files below, so many a file, by a hash of the line: other lines can change, and the
faults stay the same. The tests run once without a fault, and one that fails then is left out. Each fault is tried in a
copy of the package, with the tests that should notice it. One that no test notices is a survivor: it gets a test, or it
is listed in ``EQUIVALENT`` with the reason why it changes nothing that a test could see.

Named faults are planted too: those that people thought of, and that no test noticed at first. ``NAMED`` has the text as
it is written and what it becomes. One whose text is no longer there, or is there twice, is an error: write it anew.

    python tools/mutants.py --list           # the faults, without running anything
    python tools/mutants.py --only loop.py   # of one file
    python tools/mutants.py --named          # the named ones
    python tools/mutants.py --jobs 2         # all of them
"""

import argparse
import ast
import copy
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SEED = 0

# Files, how many faults are planted in each, and the tests that should notice them; those that take long are left out.
LONG = (
    "not resnet18 and not wrn and not transformer and not lstm and not interrupts and not threads and not program_that "
    "and not page_of_the_learner and not published"
)
RULED = "test_tangent.py::test_only_what_has_no_rule_goes_through_torch_func"
FLOAT32 = "test_tangent.py::test_float32_is_within_1e5_of_float64"
TANGENT = [
    "test_layers.py",
    "test_ordinary_networks.py",
    "test_tangent_safety.py",
    "test_tangent_panels.py",
]
LOOKAHEAD = ["test_lookahead.py", "test_lookahead_rounding.py"]
LEARNER = ["test_learner_numbers.py", "test_learner.py"]
PLACES: dict[str, tuple[int, list[str]]] = {
    "tangent/frozen.py": (5, [*TANGENT, "test_tangent_errors.py"]),
    "tangent/rule_checks.py": (5, [*TANGENT, "test_tangent_ways.py"]),
    "tangent/survey.py": (
        8,
        [RULED, FLOAT32, *TANGENT, "test_tangent_ways.py", "test_tangent_errors.py"],
    ),
    "tangent/rules.py": (8, [RULED, *TANGENT, "test_tangent_ways.py"]),
    "tangent/accumulate.py": (6, [*TANGENT, "test_tangent_pages.py", "test_tangent_ways.py"]),
    "tangent/kernel.py": (6, [*TANGENT, "test_tangent_ways.py", "test_tangent_errors.py"]),
    "lookahead/state.py": (5, [*LOOKAHEAD, "test_lookahead_errors.py", "test_lookahead_ce.py"]),
    "lookahead/graph.py": (10, ["test_graph.py", "test_pool_cases.py"]),
    "lookahead/pool_state.py": (8, ["test_graph.py", "test_pool_cases.py", "test_learner_pool.py"]),
    "label/pool_model.py": (8, ["test_learner_pool.py"]),
    "lookahead/dense.py": (6, [*LOOKAHEAD, "test_lookahead_kept.py", "test_lookahead_ce.py"]),
    "lookahead/direct.py": (4, [*LOOKAHEAD, "test_lookahead_kept.py"]),
    "lookahead/cross_entropy.py": (3, ["test_lookahead_ce.py", "test_lookahead_kept.py"]),
    "acquire/gain.py": (4, ["test_acquire.py", "test_acquire_gain.py", "test_watched_sums.py"]),
    "acquire/change.py": (4, ["test_acquire.py", "test_watched_sums.py"]),
    "pick/select.py": (
        5,
        [
            "test_query_labels.py",
            "test_query.py",
            "test_query_duplicates.py",
            "test_watched_sums.py",
        ],
    ),
    "pick/badge.py": (3, ["test_badge.py", "test_badge_layer.py"]),
    "losses.py": (
        4,
        [
            "test_network.py",
            "test_acquire_probabilities.py",
            "test_lookahead_ce.py",
            "test_ll4al.py",
        ],
    ),
    "network/sgd.py": (7, ["test_network.py"]),
    "study/loop.py": (5, ["test_study.py"]),
    "report/summary.py": (5, ["test_report.py", "test_report_folders.py"]),
    "acquire/cover.py": (4, ["test_cover.py"]),
    "pick/clusters.py": (2, ["test_space_strategies.py"]),
    "pick/space.py": (3, ["test_space_strategies.py"]),
    "pick/dropout.py": (3, ["test_dropout_strategies.py"]),
    "pick/stop.py": (3, ["test_stop.py"]),
    "label/progress.py": (4, LEARNER),
    "label/live_model.py": (5, LEARNER),
    "label/choose.py": (3, LEARNER),
    "label/store.py": (4, ["test_label_store.py", "test_label_desk.py", "test_label_start.py"]),
    "label/log.py": (3, ["test_label_store.py"]),
    "label/recovery.py": (4, ["test_label_store.py"]),
    "label/exchange.py": (3, ["test_label_exchange.py"]),
    "label/worker.py": (3, ["test_label_desk.py"]),
    "data/pictures.py": (3, ["test_data_folder.py", "test_open.py", "test_security.py"]),
    "data/columns.py": (3, ["test_data_tables.py", "test_open.py"]),
    "network/feature_cache.py": (3, ["test_features.py"]),
    "label/server.py": (2, ["test_label_server.py"]),
}

# Faults that people planted and no test noticed: the file, what is wrong, the text as it is written there, what it
# becomes, and the tests that should notice.
NUMBERS = "test_learner_numbers.py::test_"
NAMED: list[tuple[str, str, str, str, list[str]]] = [
    (
        "label/progress.py",
        "the correction is the ratio of expected errors to those made",
        "ratio = (made + PRIOR_ERRORS) / (sum(p.error for p in recent) + PRIOR_ERRORS)",
        "ratio = (sum(p.error for p in recent) + PRIOR_ERRORS) / (made + PRIOR_ERRORS)",
        [f"{NUMBERS}the_error_left_is_corrected_by_the_errors_made_over_those_expected"],
    ),
    (
        "label/progress.py",
        "the error left is the mean over all items",
        "    at = model.open_rows(book)\n    if not len(at):",
        "    at = torch.arange(len(model.at_M))\n    if not len(at):",
        [f"{NUMBERS}the_error_left_is_the_mean_over_open_items_of_what_is_expected_of_each"],
    ),
    (
        "label/progress.py",
        "errors are corrected as if few predictions were many",
        "PRIOR_ERRORS = 5.0",
        "PRIOR_ERRORS = 0.5",
        [f"{NUMBERS}many_predictions_correct_the_error_left_and_one_hardly_does"],
    ),
    (
        "label/live_model.py",
        "Θ of new inputs lacks its scale",
        "return f_nC + self.theta_scale * theta",
        "return f_nC + theta",
        [f"{NUMBERS}new_inputs_that_are_in_the_pool_have_the_outputs_of_the_pool"],
    ),
    (
        "label/live_model.py",
        "Θ between the items that join and those that were there is 0",
        "torch.cat([self.theta_MM, cross.T], 1), torch.cat([cross, own], 1)",
        "torch.cat([self.theta_MM, 0 * cross.T], 1), torch.cat([0 * cross, own], 1)",
        [f"{NUMBERS}items_that_join_a_window_have_the_kernel_of_the_whole_pool"],
    ),
    (
        "label/live_model.py",
        "Θ of items that join lacks its scale",
        'cross, own = (self.theta_scale * theta["new", name]',
        'cross, own = (theta["new", name]',
        [f"{NUMBERS}items_that_join_a_window_have_the_kernel_of_the_whole_pool"],
    ),
    (
        "label/choose.py",
        "s² of a score is that of the state",
        'return ask.options | {"scale": model.scale(book)}',
        'return ask.options | {"scale": state.scale}',
        [f"{NUMBERS}scores_take_the_scale_that_labels_since_the_training_have_shown"],
    ),
    (
        "pick/stop.py",
        "of several rounds the latest decides",
        "max(latest), self.below",
        "latest[-1], self.below",
        ["test_stop.py::test_a_small_change_must_last_so_many_rounds"],
    ),
    (
        "pick/stop.py",
        "all rounds count, and not the latest ones",
        "for r in rounds[-self.rounds :]]\n        said",
        "for r in rounds]\n        said",
        ["test_stop.py::test_a_small_change_must_last_so_many_rounds"],
    ),
    (
        "pick/dropout.py",
        "drawn configurations forget the picks before them",
        "for i in self.picked:",
        "for i in self.picked[-1:]:",
        ["test_dropout_strategies.py::test_draws_that_follow_enumeration_know_the_picks_before"],
    ),
    (
        "pick/clusters.py",
        "clusters that lost their points stay empty",
        "near_N = _refill(near_N, d_N, K, fixed)",
        "pass",
        ["test_space_strategies.py::test_a_cluster_that_lost_its_points_gets_the_one_farthest_from_its_mean"],
    ),
    (
        "pick/clusters.py",
        "a copy moves to an empty cluster",
        "far = far[d_N[far] > 0]",
        "pass",
        ["test_space_strategies.py::test_copies_leave_clusters_empty"],
    ),
    (
        "acquire/cover.py",
        "tangents have collapsed below half of the inputs' spread",
        "COLLAPSED = 1 / 3",
        "COLLAPSED = 1 / 2",
        ["test_cover.py::test_tangents_have_collapsed_below_a_third_of_the_inputs_spread"],
    ),
    (
        "acquire/cover.py",
        "tangents have collapsed below a quarter of the inputs' spread",
        "COLLAPSED = 1 / 3",
        "COLLAPSED = 1 / 4",
        ["test_cover.py::test_tangents_have_collapsed_below_a_third_of_the_inputs_spread"],
    ),
    (
        "tangent/centred.py",
        "a point without spread is told by 1e-12",
        "NO_SPREAD = 1e-9",
        "NO_SPREAD = 1e-12",
        ["test_cover.py::test_a_point_that_differs_from_the_mean_by_rounding_alone_covers_nothing"],
    ),
    (
        "tangent/centred.py",
        "a point without spread is told by 1e-6",
        "NO_SPREAD = 1e-9",
        "NO_SPREAD = 1e-6",
        ["test_cover.py::test_a_point_that_differs_from_the_mean_by_rounding_alone_covers_nothing"],
    ),
    (
        "pick/space.py",
        "distances of copies are what rounding leaves",
        "return d_ab.masked_fill_(d_ab <= both_ab.mul_(copy), 0)",
        "return d_ab",
        ["test_space_strategies.py::test_copies_are_at_distance_zero_and_near_points_are_not"],
    ),
    (
        "pick/badge.py",
        "distances of copies are what rounding leaves",
        "return torch.where(d_U > copy * both_U, d_U, 0)",
        "return d_U",
        ["test_badge.py::test_distances_of_copies_are_zero_and_those_of_near_points_are_not"],
    ),
    (
        "label/worker.py",
        "what an answer changed is told from after to before",
        "describe_change(item, was_N, now_N, label, sure_N)",
        "describe_change(item, now_N, was_N, label, sure_N)",
        ["test_label_desk.py::test_the_prediction_before_the_answer_is_kept"],
    ),
    (
        "label/log.py",
        "leases stay as a write that failed had them",
        "kept.settings, kept.leases = before[1:]",
        "kept.settings = before[1]",
        ["test_label_store.py::test_a_write_that_fails_changes_nothing_in_memory_either"],
    ),
    (
        "files.py",
        "a file is written in its place",
        'part = path.with_name(f".{path.name}.{os.getpid()}.part")',
        "part = path",
        ["test_files.py", "test_label_exchange.py::test_an_export_that_fails_leaves_the_one_before"],
    ),
    (
        "label/exchange.py",
        "the first annotation counts",
        'for annotation in reversed(_listed(task.get("annotations"))):',
        'for annotation in _listed(task.get("annotations")):',
        ["test_label_exchange.py::test_exports_of_label_studio_itself"],
    ),
    (
        "label/server.py",
        "encoded pictures are kept without a bound",
        "lru_cache(PICTURES_KEPT)(encoded)",
        "lru_cache(None)(encoded)",
        ["test_label_server.py::test_the_pictures_that_are_kept_are_bounded_and_the_last_ones_asked_for"],
    ),
    (
        "label/server.py",
        "metadata stay in a picture",
        "    clean.paste(image)\n",
        "    clean = image\n",
        ["test_label_server.py::test_no_metadata_of_a_picture_is_served"],
    ),
    (
        "network/feature_cache.py",
        "the palette does not count in the digest of a picture",
        'palette = part.getpalette() if part.mode in ("P", "PA") else None',
        "palette = None",
        ["test_features.py::test_what_stands_beside_the_pixels_of_a_picture_counts"],
    ),
    (
        "data/pictures.py",
        "the palette does not count in the contents of a picture",
        "beside = image.getpalette(), ",
        "beside = None, ",
        ["test_open.py::test_pictures_of_one_pattern_and_two_palettes_are_two"],
    ),
    (
        "data/columns.py",
        "a time zone counts the other way",
        "return days - (away.total_seconds()",
        "return days + (away.total_seconds()",
        ["test_open.py::test_dates_with_a_time_zone_are_moments"],
    ),
    (
        "data/pictures.py",
        "16 bits are cut off",
        "((deep + 128) // 257)",
        "(deep // 256)",
        ["test_data_folder.py::test_sixteen_bits_become_the_nearest_of_eight"],
    ),
    (
        "network/backbones.py",
        "16 bits are cut off",
        "((deep + 128) // 257)",
        "(deep // 256)",
        ["test_backbones.py::test_pictures_become_upright_and_square"],
    ),
    (
        "given.py",
        "16 bits are cut off",
        "((deep + 128) // 257)",
        "deep.clip(0, 255)",
        ["test_learner.py::test_pictures_of_sixteen_bits_are_scaled_and_not_cut_off"],
    ),
    (
        "data/dataset.py",
        "a channel that varies by rounding alone is scaled up",
        "std_C[std_C <= 1e-6 * mean_C.abs()] = 1",
        "std_C[std_C == 0] = 1",
        ["test_data_files.py::test_a_channel_that_never_varies_is_not_scaled_up"],
    ),
    (
        "network/models.py",
        "a column that varies by rounding alone is scaled up",
        "still = deviation_D <= 1e-6 * mean_D.abs()",
        "still = deviation_D == 0",
        ["test_data_files.py::test_a_column_that_varies_by_rounding_alone_is_not_scaled_up"],
    ),
    (
        "connect/open.py",
        "floats become the byte below them",
        "return (items * 255).round().to(torch.uint8)",
        "return (items * 255).to(torch.uint8)",
        ["test_open.py::test_float_pictures_reach_a_backbone_as_the_nearest_bytes"],
    ),
]

# Survivors that change nothing a test could see: (file, line as it is written, fault) and the reason.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "lookahead/graph.py",
        "step = max(1, -(-G // SYMMETRIC_PARTS))",
        "1 becomes 2",
    ): "how many columns are made at once",
    (
        "label/pool_model.py",
        "theta_MM = items.theta(0.0)",
        "0.0 becomes 1.0",
    ): "with γ = 0 the network's model answers, and with another γ this is replaced",
    (
        "tangent/survey.py",
        "if not together or len(alone) != len(together):",
        "only the first condition is left",
    ): "where one point makes fewer calls than two, the batch is checked, and a rule that fails there is given up",
    (
        "tangent/rule_checks.py",
        "at = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:count]",
        "0 becomes 1",
    ): "which points are drawn for the check",
    (
        "tangent/survey.py",
        "return 2 * min(points, CHECK_POINTS) * (self.alone_bytes + 4 * self.mark_bytes) + 3 * self.parameter_bytes",
        "4 becomes 5",
    ): "an estimate of bytes, from above",
    (
        "tangent/survey.py",
        "f_1C = frozen.call(take_points(x, slice(1)), attached=True)[0]",
        "1 becomes 2",
    ): "one more point goes through the network, and the first is used",
    (
        "tangent/rules.py",
        "extent = (*extent[:-1], -(-extent[-1] // 4) * 4)",
        "1 becomes 2",
    ): "a GPU's line: elsewhere there is one copy; tests that need a CUDA device go through it",
    (
        "tangent/rules.py",
        "return 0, p.shape[0] // groups if groups > 1 else 1",
        "1 becomes 2",
    ): "parameters are cut into slices of two columns at least, not of one: the same numbers",
    (
        "tangent/rules.py",
        "each = 24 * t * t * max(n, 1) if heads == 1 else 48 * t * heads * o",
        "48 becomes 49",
    ): "an estimate of bytes: how many points go into a tile, not what comes of them",
    (
        "tangent/rules.py",
        "if wide > 3 * tall and prod(size) > tall:",
        "Mult becomes Div",
    ): "which of two ways is faster; both give the same rows",
    (
        "tangent/accumulate.py",
        "return 4096 if cuda else min(2048, max(256, -(-n // 6)))",
        "2048 becomes 2049",
    ): "rows of a strip: how Θ is cut, not what it is",
    (
        "network/sgd.py",
        "torch.set_num_threads(1)",
        "1 becomes 2",
    ): "how many threads train: speed only",
    (
        "tangent/accumulate.py",
        "plain = len(self.data) == 1 and self.scale == 1.0 and self.data.dtype == rows_nBw.dtype",
        "1 becomes 2",
    ): "whether rows are copied once more on their way; the same numbers",
    (
        "study/loop.py",
        '"peak_memory": 0,',
        "0 becomes 1",
    ): "a place in the record, which the loop fills",
    (
        "losses.py",
        "return t_NC.shape[1] > 1 and not bool((t_NC < 0).any() or ((t_NC.sum(1) - 1).abs() > tolerance).any())",
        "Gt becomes GtE",
    ): "a sum that is off by the tolerance to the last bit",
    (
        "acquire/change.py",
        "spare = state.mean.new_empty(0, 0)",
        "0 becomes 1",
    ): "a buffer without room, which the first block replaces",
    (
        "pick/badge.py",
        "copy = 32 * torch.finfo(norms_U.dtype).eps if copy is None else copy",
        "32 becomes 33",
    ): "how much rounding is expected between two copies: 32 ε is a guess, and so is 33 ε",
    (
        "pick/select.py",
        "if state.B == 1 and can_mark_fused(before.variance_blocks):",
        "1 becomes 2",
    ): "a GPU's line: without one, can_mark_fused is False; tests that need a CUDA device go through it",
    (
        "label/choose.py",
        "batch = Batch(min(n, len(open_rows)), torch.Generator().manual_seed(ask.seed + 1000003 * (count + 1)))",
        "Add becomes Sub",
    ): "another seed: which random numbers a strategy draws",
    (
        "label/worker.py",
        "self._told = 0",
        "0 becomes 1",
    ): "the number of the first change: only their order counts",
    (
        "label/worker.py",
        "trim(0)",
        "0 becomes 1",
    ): "bytes that may stay at the end of the heap: one more",
    (
        "label/store.py",
        "if first not in found or _weight(event) > _weight(found[first]):",
        "Gt becomes GtE",
    ): "weights end with the number of the event, and no two are equal",
    (
        "network/feature_cache.py",
        "return np.empty(0, ITEM), np.empty((0, 0), np.float32)",
        "0 becomes 1",
    ): "a digest beside no rows, which nobody reads",
    (
        "label/server.py",
        "found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)",
        "1 becomes 2",
    ): "any number but 0 turns the option on",
}


@dataclass(frozen=True)
class Fault:
    """One change of one file."""

    file: str
    line: int
    before: str
    what: str
    code: str  # of the whole file, changed

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.before, self.what

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: {self.before}"


COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Small faults of one expression: what is done, and the expression in its place."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            new.ops = [COMPARISONS[type(op)]()]
            yield f"{type(op).__name__} becomes {type(new.ops[0]).__name__}", new
        case ast.BinOp(op=op) if type(op) in OPERATORS and not _is_text(new):
            new.op = OPERATORS[type(op)]()
            yield f"{type(op).__name__} becomes {type(new.op).__name__}", new
        case ast.UnaryOp(op=ast.USub()):
            yield "the sign is dropped", new.operand
        case ast.UnaryOp(op=ast.Not()):
            yield "not is dropped", new.operand
        case ast.BoolOp(values=[first, *_]):
            yield "only the first condition is left", first
        case ast.IfExp():
            new.body, new.orelse = new.orelse, new.body
            yield "the branches change places", new
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            new.value = value + 1
            yield f"{value} becomes {new.value}", new


def _is_text(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node))


class Replace(ast.NodeTransformer):
    """Put ``new`` in the place of ``old``."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def faults(source: Path, name: str, count: int) -> list[Fault]:
    """``count`` faults inside the functions of a file, at different lines, drawn by a hash of line and change."""
    text = (source / name).read_text()
    lines, tree = text.splitlines(), ast.parse(text)
    places: list[tuple[Any, str, ast.AST]] = []
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        for statement in function.body:
            for node in ast.walk(statement):
                if not isinstance(statement, ast.FunctionDef) and not _in_message(statement, node):
                    places += [(node, what, new) for what, new in changes(node)]

    def draw(place: tuple[Any, str, ast.AST]) -> str:
        node, what, _ = place
        return hashlib.sha256(f"{SEED} {name} {lines[node.lineno - 1].strip()} {what}".encode()).hexdigest()

    places.sort(key=draw)
    found: list[Fault] = []
    for node, what, new in places:
        line = node.lineno
        if len(found) < count and line not in {f.line for f in found}:
            whole = copy.deepcopy(tree)
            twin = next(n for a, n in zip(ast.walk(tree), ast.walk(whole)) if a is node)
            code = ast.unparse(ast.fix_missing_locations(Replace(twin, new).visit(whole)))
            found.append(Fault(name, line, lines[line - 1].strip(), what, code))
    return found


def named_faults(source: Path, named: Sequence[tuple[str, str, str, str, list[str]]]) -> list[tuple[Fault, list[str]]]:
    """The named faults and their tests. Raises if a text is not there just once, or if a test is not there."""
    planted, wrong = list[tuple[Fault, list[str]]](), list[str]()
    for name, what, before, after, tests in named:
        text = (source / name).read_text() if (source / name).is_file() else ""
        if (count := text.count(before)) != 1:
            wrong.append(f"{name} has {count} times, expected once: {before!r} ({what})")
            continue
        wrong += [f"{test} is not there, and should notice: {what}" for test in tests if not is_test(test)]
        line = text[: text.index(before)].count("\n") + 1
        planted.append((Fault(name, line, before.strip().splitlines()[0], what, text.replace(before, after)), tests))
    if wrong:
        raise SystemExit("\n".join(["the faults in NAMED of tools/mutants.py no longer fit the code:", *wrong]))
    return planted


def is_test(test: str) -> bool:
    """Whether there is such a file in ``tests``, with such a function in it."""
    file, _, function = test.partition("::")
    path = find_test(file)
    return path.is_file() and (not function or f"\ndef {function}(" in path.read_text())


def find_test(test: str) -> Path:
    """The file of a test, in whichever folder of ``tests`` it is."""
    return next((ROOT / "tests").rglob(test.partition("::")[0]), ROOT / "tests" / test)


def _in_message(statement: ast.stmt, node: ast.AST) -> bool:
    """Whether a node is part of an error, a log line, a docstring or a formatted text."""
    for parent in ast.walk(statement):
        message = isinstance(parent, ast.Raise | ast.JoinedStr | ast.Assert)
        message |= isinstance(parent, ast.Call) and ast.unparse(parent.func).startswith(("log.", "warnings."))
        if message and any(child is node for child in ast.walk(parent)):
            return True
    return False


# --- one fault ---


def noticed(fault: Fault, tests: list[str], folder: Path, seconds: int, failing: list[str]) -> str | None:
    """Run the tests on a copy of the package with the fault in it; the test that notices, or None."""
    copied = folder / hashlib.sha256(str(fault).encode()).hexdigest()[:12]
    shutil.copytree(ROOT / "src", copied)
    try:
        (copied / "foretaste" / fault.file).write_text(fault.code)
        return run_tests(copied, tests, seconds, failing)
    finally:
        shutil.rmtree(copied)


def run_tests(package: Path, tests: list[str], seconds: int, without: Sequence[str] = ()) -> str | None:
    """None if all tests pass with the package that lies in this folder, else the test that fails."""
    run = run_pytest(package, ["-x", *(f"--deselect={test}" for test in without)], tests, seconds)
    if run is None:
        return "a test never ends"
    if run.returncode in (0, 5):  # 5: no test was left to run
        return None
    failed = failed_tests(run)
    return failed[0] if failed else f"pytest exits with {run.returncode}"


def run_pytest(
    package: Path, options: list[str], tests: Iterable[str], seconds: int
) -> subprocess.CompletedProcess[str] | None:
    """pytest with the package that lies in this folder; None if it takes longer than so many seconds."""
    environment = os.environ | {
        "PYTHONPATH": f"{package}{os.pathsep}{ROOT / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "-k", LONG, *options]
    command += [test.replace(test.partition("::")[0], str(find_test(test).relative_to(ROOT))) for test in tests]
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return None


def failed_tests(run: subprocess.CompletedProcess[str]) -> list[str]:
    lines = [line for line in (run.stdout + run.stderr).splitlines() if line.startswith(("FAILED", "ERROR"))]
    return [line.split(maxsplit=1)[1].split(" - ")[0] for line in lines]


def find_failing(files: Iterable[str], seconds: int) -> list[str]:
    """The tests that fail without any fault, all files in one process."""
    run = run_pytest(ROOT / "src", [], files, seconds)
    failing = [] if run is None else failed_tests(run)
    if run is None or (run.returncode and not all("::" in test for test in failing or [""])):
        raise SystemExit(f"without any fault: {failing or 'a test never ends' if run is None else run.stdout[-500:]}")
    for test in failing:
        print(f"fails without a fault, and is left out: {test}", flush=True)
    return failing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show the faults and run nothing")
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--named", action="store_true", help="only the named faults")
    parser.add_argument("--trusted", action="store_true", help="the tests pass without a fault: do not try that first")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=600, help="for the tests of one fault")
    chosen = parser.parse_args()
    source = ROOT / "src" / "foretaste"
    planted = [
        (fault, tests)
        for name, (count, tests) in PLACES.items()
        if chosen.only in name and not chosen.named
        for fault in faults(source, name, count)
    ]
    planted += named_faults(source, [entry for entry in NAMED if chosen.only in entry[0]])
    if chosen.list:
        print(*(fault for fault, _ in planted), sep="\n")
        return 0
    survivors, equivalent = [], 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.jobs) as pool:
        files = dict.fromkeys(test for _, tests in planted for test in tests)
        failing = [] if chosen.trusted else find_failing(files, 6 * chosen.seconds)
        tried = [(f, pool.submit(noticed, f, tests, Path(folder), chosen.seconds, failing)) for f, tests in planted]
        for fault, run in tried:
            if by := run.result():
                verdict = "noticed"
            elif fault.key in EQUIVALENT:
                verdict, equivalent = f"equivalent: {EQUIVALENT[fault.key]}", equivalent + 1
            else:
                verdict = "SURVIVED"
                survivors.append(fault)
            print(f"{verdict:10s} {fault}{f' ({by})' if by else ''}", flush=True)
    seen = len(planted) - len(survivors) - equivalent
    print(f"{len(planted)} faults: {seen} noticed, {equivalent} equivalent, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
