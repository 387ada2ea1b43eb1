"""A study on a GPU: the same seed gives the same records, trained by graphs or not."""

from dataclasses import replace

import pytest
import torch

from foretaste.study import Data, Labels, Network, Train, run, study

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SMALL = study(
    ("gain", "badge", "random"),
    seeds=(0,),
    data=Data(pool_points=400, test_points=100),
    labels=Labels(init=20, per_cycle=5, cycles=1, subset=100),
    network=Network("mlp", {"hidden": (32,)}),
    train=Train(steps=100, max_lr=0.1),
)


def timeless(records):
    return [{k: v for k, v in r.items() if k != "cost"} for r in records]


@pytest.mark.parametrize(
    "network", [Network("mlp", {"hidden": (32,)}), Network("wrn1", {"widen": 1})], ids=["mlp", "wrn1"]
)
def test_same_seed_same_records(network):
    of = replace(SMALL, network=network)
    first, second = (timeless(run(of, devices=("cuda:0",))) for _ in range(2))
    assert first == second
    assert "cpu" not in first[0]["versions"]["device"]
    assert all(r["accuracy"] > 0.2 for r in first)
