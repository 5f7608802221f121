import json
import math

import pytest

from experiments.notions import wdp
from experiments.notions.wdp import BayesianAccountant, MomentsAccountant


@pytest.mark.parametrize(
    ("name", "pictures"),
    [
        ("wdp_fig1", {"wdp_fig1"}),
        ("wdp_fig2", {"wdp_fig2", "wdp_fig4"}),
        ("wdp_fig3", {"wdp_fig3"}),
    ],
)
def test_quick_run(name, pictures, tmp_path):
    result = wdp.EXPERIMENTS[name][1](tmp_path, quick=True)
    json.dumps(result, allow_nan=False)
    assert result["rows"]
    assert {path.stem for path in tmp_path.glob("*.png")} == pictures


def test_comparators_against_dp_accounting():
    from dp_accounting import GaussianDpEvent, rdp

    ours = MomentsAccountant(16)
    ours.step(3.0, sigma=6.0, rate=1.0)  # without sampling: the RDP of a Gaussian at order 17
    reference = rdp.RdpAccountant([17])
    reference.compose(GaussianDpEvent(2.0))
    # dp_accounting's conversion subtracts ln(order) / (order - 1) and adds ln(1 - 1 / order) to the classical one.
    improvement = math.log(17) / 16 - math.log1p(-1 / 17)
    assert ours.get_epsilon(1e-5) == pytest.approx(reference.get_epsilon(1e-5) + improvement, rel=1e-9)
    bayes = BayesianAccountant(16, n_steps=10)
    bayes.step([3.0] * 5, sigma=6.0, rate=1.0)  # equal distances, no spread: the classical accountant
    assert bayes.total == pytest.approx(ours.total, rel=1e-12)


def test_table_2_printed_rows():
    rows = {row["dataset"]: row for row in wdp.printed_rows()}
    betas = {name: row["least_beta"] for name, row in rows.items()}
    assert betas == pytest.approx({"MNIST": 30.3, "CIFAR-10": 44.3, "SVHN": 57.6, "Fashion-MNIST": 51.2}, abs=0.05)
    assert rows["Fashion-MNIST"]["p_attack_dp_is"] == pytest.approx(0.9478, abs=1e-4)  # 0.623 is printed
    wrong = {
        (name, notion)
        for name, row in rows.items()
        for notion in ("dp", "bdp", "wdp")
        if abs(row[f"p_attack_{notion}"] - row[f"p_attack_{notion}_is"]) > 1e-3
    }
    assert wrong == {("MNIST", "dp"), ("SVHN", "dp"), ("Fashion-MNIST", "dp")}
