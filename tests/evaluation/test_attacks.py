"""Membership attacks where the answer is known: copies, noisy copies, fresh records."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from dpswd import InputError, PrivateGenerator
from dpswd.commands.main import main
from dpswd.data import benchmark
from dpswd.evaluation.attacks import ATTACKS, attack, auc, clopper_pearson, figure
from dpswd.records import Records

DIGITS = benchmark("digits")


def rows(n, d, seed, scale=1.0):
    values = np.random.default_rng(seed).normal(size=(n, d)) * scale
    return Records(torch.as_tensor(values, dtype=torch.float32), torch.zeros(n, dtype=torch.int64))


def by_name(result):
    return {row["name"]: row for row in result["attacks"]}


# Copies


def test_a_copier_is_found_by_every_attack():
    result = attack(DIGITS.train, DIGITS.train, DIGITS.test, mu=2.0)
    for name in ATTACKS:
        assert by_name(result)[name]["auc"] > 0.95
        assert by_name(result)[name]["tpr"] > 0.9
        assert by_name(result)[name]["exceeds_bound"]
    assert not result["passed"]


def test_copies_with_little_noise_among_many_records_are_found():
    noisy = DIGITS.train.floats() + 0.02 * torch.randn(
        DIGITS.train.values.shape, generator=torch.Generator().manual_seed(0)
    )
    fresh = torch.rand(1000, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    values = torch.cat([noisy, fresh])
    synthetic = Records(values, torch.zeros(len(values), dtype=torch.int64))
    result = attack(synthetic, DIGITS.train, DIGITS.test, mu=2.0)
    assert max(row["auc"] for row in result["attacks"]) > 0.95


@pytest.mark.parametrize("d", [3, 60])
def test_fresh_records_are_not_found(d):
    result = attack(rows(500, d, 0), rows(400, d, 1), rows(800, d, 2), mu=0.0)
    for row in result["attacks"]:
        low, high = row["auc_interval"]
        assert low - 0.03 < 0.5 < high + 0.03
    assert result["passed"]


# The bound


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_records_with_the_noise_of_a_bound_keep_it(mu):
    """Every member leaves once, with Gaussian noise for its norm of 1/2: a mechanism of this mu."""
    directions = rows(1200, 2, 3).values
    ball = 0.5 * directions / directions.norm(dim=1, keepdim=True)
    members = Records(ball[:400], torch.zeros(400, dtype=torch.int64))
    others = Records(ball[400:], torch.zeros(800, dtype=torch.int64))
    noise = rows(400, 2, 4).values / mu
    released = Records(members.values + noise, members.labels)
    result = attack(released, members, others, mu=mu)
    assert result["passed"]
    for row in result["attacks"]:
        assert row["auc_interval"][0] <= result["bound"]["auc"]


def test_a_private_generator_of_digits_keeps_the_bound_of_mu_2(tmp_path):
    estimator = PrivateGenerator(epsilon=10, delta=1e-5, run_dir=tmp_path, verbose=False)
    handle = DIGITS.train.private(classes=range(10))
    images, _ = estimator.fit(handle).sample(1000)
    values = torch.as_tensor(np.asarray(images)).reshape(-1, 1, 8, 8).float()
    synthetic = Records(values, torch.zeros(1000, dtype=torch.int64))
    mu = estimator.guarantee_.mu
    assert mu == pytest.approx(2, abs=0.01)
    result = attack(synthetic, DIGITS.train, DIGITS.test, mu=mu)
    assert result["passed"]
    for row in result["attacks"]:
        assert row["auc"] < result["bound"]["auc"]


def test_bound_is_that_of_gaussian_differential_privacy():
    bound = attack(rows(50, 3, 0), rows(50, 3, 1), rows(50, 3, 2), mu=1.5)["bound"]
    scores = np.random.default_rng(0).normal(size=200_000)
    area = np.mean(scores[:100_000] + 1.5 > scores[100_000:])
    assert bound["auc"] == pytest.approx(area, abs=0.005)
    assert bound["tpr"] == pytest.approx(stats.norm.sf(stats.norm.isf(0.01) - 1.5))
    assert np.all(np.diff(bound["curve"]) >= 0)


# Figures


def test_auc_and_its_error_are_those_of_repetitions():
    generator = np.random.default_rng(0)
    areas = []
    errors = []
    for _ in range(400):
        members = generator.normal(0.7, 1, 80).round(1)  # with ties
        others = generator.normal(0, 1, 120).round(1)
        area, error = auc(members, others)
        labels = np.repeat([1, 0], [80, 120])
        assert area == pytest.approx(roc_auc_score(labels, np.concatenate([members, others])))
        areas.append(area)
        errors.append(error)
    # the relative error of a standard deviation of 400 draws is 1 / sqrt(800) = 0.035
    assert np.std(areas) == pytest.approx(np.mean(errors), rel=4 * 0.035)


def test_clopper_pearson_covers():
    low, high = clopper_pearson(3, 50, 0.95)
    assert stats.binom.sf(2, 50, low) == pytest.approx(0.025)
    assert stats.binom.cdf(3, 50, high) == pytest.approx(0.025)
    assert clopper_pearson(0, 50, 0.95)[0] == 0
    assert clopper_pearson(50, 50, 0.95)[1] == 1


def test_at_most_one_in_a_hundred_non_members_is_accused():
    result = attack(rows(200, 4, 0), rows(300, 4, 1), rows(400, 4, 2), mu=1.0)
    for row in result["attacks"]:
        assert np.all(np.diff(row["curve"]) >= 0)
        assert row["curve"][-1] == 1
        index = np.argmin(np.abs(np.array(result["curve_fpr"]) - 0.01))
        assert row["curve"][index] == pytest.approx(row["tpr"], abs=0.01)


@pytest.mark.parametrize(
    ("members", "others", "name"), [(10, 100, "members"), (100, 30, "non-members")]
)
def test_too_few_records_are_refused(members, others, name):
    with pytest.raises(InputError, match=name):
        attack(rows(50, 3, 0), rows(members, 3, 1), rows(others, 3, 2))


def test_other_shapes_are_refused():
    with pytest.raises(InputError, match="shape"):
        attack(rows(50, 3, 0), rows(50, 4, 1), rows(50, 3, 2))


def test_picture(tmp_path):
    for mu in (None, 1.0):
        result = attack(rows(50, 3, 0), rows(50, 3, 1), rows(50, 3, 2), mu=mu)
        figure(tmp_path / f"{mu}.png", result)
        assert (tmp_path / f"{mu}.png").read_bytes().startswith(b"\x89PNG")


# The command


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("copies.npz", data=DIGITS.train.vectors().reshape(-1, 8, 8))
    assert main(["attack", "copies.npz", "digits", "digits", "--mu", "2"]) == 1
    assert "EXCEEDED" in capsys.readouterr().out
    result = json.loads((tmp_path / "private" / "copies" / "attack.json").read_text())
    assert result["bound"]["mu"] == 2
    assert (tmp_path / "private" / "copies" / "attack.png").exists()
    assert main(["attack", "copies.npz", "digits", "digits", "--out", "elsewhere"]) == 0
    assert "No bound" in capsys.readouterr().out


def test_command_reads_mu_from_the_ledger_of_run_and_bundle(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "digits", "--epsilon", "10", "--out", "run", "-n", "60"]) == 0
    assert main(["publish", "run", "--out", "bundle", "-n", "60"]) == 0
    capsys.readouterr()
    for number, data in enumerate(["run", "run/synthetic.npz", "bundle"]):
        out = ["--out", f"private/{number}", "--json"]
        assert main(["attack", data, "digits", "digits", *out]) == 0
        result = json.loads(capsys.readouterr().out)
        assert math.isclose(result["bound"]["mu"], 2.0, rel_tol=1e-3)
        assert result["n_synthetic"] == 60


def test_command_refuses_to_write_into_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "privacy.json").write_text("{}")
    np.savez("copies.npz", data=np.zeros((50, 8, 8)))
    assert main(["attack", "copies.npz", "digits", "digits", "--out", "run/x"]) == 2
    assert "outside of every run" in capsys.readouterr().err


def test_tables_are_matched_by_the_names_of_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).random((100, 2))
    lines = [f"{a},{b},yes" for a, b in values]
    (tmp_path / "members.csv").write_text("a,b,class\n" + "\n".join(lines) + "\n")
    lines = [f"{b},{a},yes" for a, b in values]
    (tmp_path / "copies.csv").write_text("b,a,class\n" + "\n".join(lines) + "\n")
    lines = [f"{a},{b},yes" for a, b in np.random.default_rng(1).random((100, 2))]
    (tmp_path / "others.csv").write_text("a,b,class\n" + "\n".join(lines) + "\n")
    assert main(["attack", "copies.csv", "members.csv", "others.csv", "--mu", "1"]) == 1
    result = json.loads((tmp_path / "private" / "copies" / "attack.json").read_text())
    assert result["attacks"][0]["auc"] > 0.95


def write_table(path, columns, seed):
    """Write a table of three normal columns and a class, in an order of the columns."""
    values = np.random.default_rng(seed).normal(size=(60, 3)) * [1.0, 10.0, 100.0]
    cells = dict(zip(("age", "size", "weight"), values.T, strict=True))
    cells["class"] = np.arange(60) % 2
    lines = [",".join(columns)]
    for row in zip(*(cells[name] for name in columns), strict=True):
        lines.append(",".join(map(str, row)))
    path.write_text("\n".join(lines) + "\n")


COLUMNS = ("age", "size", "weight", "class")


@pytest.mark.parametrize("others", ["copies.csv", "copies.npz"])
@pytest.mark.parametrize("command", ["evaluate", "attack"])
def test_a_misspelt_target_is_refused(tmp_path, monkeypatch, capsys, command, others):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "copies.csv", COLUMNS, 0)
    write_table(tmp_path / "real.csv", COLUMNS, 1)
    np.savez("copies.npz", features=np.ones((60, 3)), labels=np.arange(60) % 2)
    real = ["real.csv", "real.csv"][: 1 + (command == "attack")]
    assert main([command, others, *real, "--target", "clas"]) == 2
    message = capsys.readouterr().err
    assert "got 'clas'; the closest columns are class." in message
    assert message.count("\n") == 1
    real = ["copies.npz"] * len(real)
    assert main([command, "copies.npz", *real, "--target", "labels"]) == 2
    assert "whose classes are not in a column 'labels'; leave it out." in capsys.readouterr().err
    assert not Path("private").exists()


def test_records_of_two_runs_are_attacked_in_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "members.csv", COLUMNS, 1)
    write_table(tmp_path / "others.csv", COLUMNS, 2)
    for name in ("run1.5", "run1.9"):
        Path(name).mkdir()
        Path(name, "privacy.json").write_text("{}")
        write_table(Path(name, "synthetic.csv"), COLUMNS, 0)
        assert main(["attack", f"{name}/synthetic.csv", "members.csv", "others.csv"]) == 0
        assert Path("private", name, "attack.json").is_file()
    assert main(["attack", "run1.5", "members.csv", "others.csv"]) == 2  # overwrites nothing
