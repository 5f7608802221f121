import json
import os
from pathlib import Path

import pytest

from experiments.notions import tangent, wdp_fig1, wdp_fig2, wdp_fig3, wdp_table2

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(
    ("module", "pictures"),
    [
        (wdp_fig1, ["wdp_fig1"]),
        (wdp_fig2, ["wdp_fig2", "wdp_fig4"]),
        (wdp_fig3, ["wdp_fig3"]),
        (tangent, ["tangent"]),
    ],
)
def test_quick_run_draws_and_returns_rows(module, pictures: list[str], tmp_path: Path) -> None:
    result = module.run(tmp_path, quick=True)
    assert module.HELP
    json.dumps(result, allow_nan=False)
    assert result["rows"]
    assert {path.stem for path in tmp_path.glob("*.png")} == set(pictures)


def test_comparators_against_another_library() -> None:
    # one full-batch step at rate 1: the moments accountant is the RDP of a Gaussian, at order + 1
    from dp_accounting import GaussianDpEvent, rdp

    from experiments.notions.wdp_comparators import BayesianAccountant, MomentsAccountant

    ours = MomentsAccountant(16)
    ours.step(3.0, sigma=6.0, rate=1.0)
    reference = rdp.RdpAccountant([17])
    reference.compose(GaussianDpEvent(2.0))
    assert ours.total / 16 == pytest.approx(float(reference._rdp[0]), rel=1e-12)
    # equal distances, no spread: the Bayesian accountant is the classical one
    bayes = BayesianAccountant(16, n_steps=10)
    bayes.step([3.0] * 5, sigma=6.0, rate=1.0)
    assert bayes.total == pytest.approx(ours.total, rel=1e-12)


def test_what_the_page_says_of_figure_4() -> None:
    rows = json.loads((RESULTS / "wdp_fig2.json").read_text())["rows"]
    study = {(row["noise"], row["unit"]): row for row in rows if row["clipped"] and row["quantile"] == 0.5}
    wdp = [study[noise, 1.0]["wdp_diagnostic"] for noise in (0.02, 0.2, 2.0)]
    epsilon = [study[noise, 1.0]["dp_epsilon"] for noise in (0.02, 0.2, 2.0)]
    assert wdp == sorted(wdp)  # grows with the noise ...
    assert epsilon == sorted(epsilon, reverse=True)  # ... that protects
    assert study[0.2, 0.001]["dp_epsilon"] == pytest.approx(study[0.2, 1.0]["dp_epsilon"])
    assert study[0.2, 0.001]["wdp_diagnostic"] < 0.002 * study[0.2, 1.0]["wdp_diagnostic"]


def test_what_the_page_says_of_table_2() -> None:
    rows = json.loads((RESULTS / "wdp_table2.json").read_text())["rows"]
    for name in ("MNIST", "Fashion-MNIST"):
        guarded, bare = sorted((row for row in rows if row["dataset"] == name), key=lambda row: row["dp_epsilon"])
        assert guarded["noise_multiplier"] > bare["noise_multiplier"]
        for unit in ("sum", "mean"):  # the diagnostic orders the two runs the wrong way round
            assert guarded[f"wdp_diagnostic_{unit}"] > bare[f"wdp_diagnostic_{unit}"]
    page = (RESULTS.parent / "notions.md").read_text()
    for row in rows:
        assert f"{row['wdp_diagnostic_mean']:.2f} ({row['p_attack_wdp_diagnostic_mean']:.3f})" in page


@pytest.mark.slow
@pytest.mark.data
def test_table_2_trains(tmp_path: Path) -> None:
    root = os.environ.get("DPSWD_DATA")
    if not root or not (Path(root) / "MNIST").exists():
        pytest.skip("needs MNIST under DPSWD_DATA")
    rows = wdp_table2.run(tmp_path, quick=True, data=Path(root))["rows"]
    noisy, bare = rows[0], rows[1]
    assert noisy["dp_epsilon"] < 10 < 1000 < bare["dp_epsilon"]
    assert noisy["wdp_diagnostic_sum"] > bare["wdp_diagnostic_sum"]
