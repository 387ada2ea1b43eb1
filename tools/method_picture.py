"""docs/method.svg: the method in three panels, computed by foretaste on a curve. `python tools/method_picture.py`."""

from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

import foretaste as ft
from foretaste.network import MLP

OUT = Path(__file__).parent.parent / "docs" / "method.svg"
BLUE, ORANGE, GREY = "#31688e", "#d95f02", "#8a8f98"


def main(out: Path = OUT) -> None:
    """Train, look ahead at one point, compare with retraining, and score all points."""
    torch.manual_seed(0)
    x_U = torch.linspace(-1, 1, 161)[:, None]
    truth_U = torch.sin(4 * x_U[:, 0]) + x_U[:, 0] ** 2
    labelled, j = [20, 60, 90], 130
    net = MLP(1, (128, 128), 1, activation="tanh")
    ft.fit(net, x_U[labelled], truth_U[labelled], steps=600, max_lr=0.02)
    state = ft.linearize(net, x_U[labelled], truth_U[labelled], x_U)
    before, after = state.mean[:, 0], state.lookahead(j, truth_U[[j]])[:, 0]
    more = [*labelled, j]
    ft.fit(net, x_U[more], truth_U[more], steps=600, max_lr=0.02, start="warm")
    with torch.no_grad():
        retrained = net(x_U)[:, 0]
    worth_U = ft.acquire.variance(state)

    figure = Figure(figsize=(10, 2.9), layout="constrained")
    axes = figure.subplots(1, 3, sharex=True)
    at = x_U[:, 0]
    axes[0].set_title("1  a trained network, a few labels", fontsize=10)
    axes[0].plot(at, before, color=BLUE, label="network")
    axes[1].set_title("2  if this point had that label: a formula", fontsize=10)
    axes[1].plot(at, before, color=BLUE, alpha=0.35)
    axes[1].plot(at, retrained, color=GREY, linewidth=4, alpha=0.6, label="retrained, to compare")
    axes[1].plot(at, after, color=ORANGE, label="look-ahead, no training")
    axes[1].plot(at[j], truth_U[j], "o", color=ORANGE)
    for ax in axes[:2]:
        ax.plot(at[labelled], truth_U[labelled], "ko", markersize=5, label="labels" if ax is axes[0] else None)
        ax.set_ylim(-2.6, 3.4)
        ax.legend(fontsize=8, loc="upper left", frameon=False)
    axes[2].set_title("3  so for every point: label the best", fontsize=10)
    axes[2].fill_between(at, worth_U, color=BLUE, alpha=0.25)
    axes[2].plot(at, worth_U, color=BLUE)
    best = int(worth_U.argmax())
    axes[2].annotate(
        "next", (float(at[best]), float(worth_U[best])), xytext=(-8, -22), textcoords="offset points", color=ORANGE
    )
    axes[2].plot(at[best], worth_U[best], "o", color=ORANGE)
    axes[2].set_ylabel("what a label is worth", fontsize=8)
    for ax in axes:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.hashsalt": "method"}):
        figure.savefig(out, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
