"""Utility and fidelity on records where the answer is known,
and the files that they are written to.
"""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd import InputError
from dpswd.commands.main import main
from dpswd.data import benchmark
from dpswd.evaluation import evaluate, figure
from dpswd.evaluation.accuracy import IMAGE_CLASSIFIERS, ROW_CLASSIFIERS, scores
from dpswd.evaluation.fidelity import compare, fidelity, frechet, total_variation
from dpswd.records import Records

DIGITS = benchmark("digits")
FLAT = [Records(part.values.flatten(1), part.labels) for part in (DIGITS.train, DIGITS.test)]


def records(rows, labels):
    return Records(torch.as_tensor(rows), torch.as_tensor(labels))


def normal(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize(
    ("name", "images"),
    [
        *((name, True) for name in IMAGE_CLASSIFIERS),
        *((name, False) for name in ROW_CLASSIFIERS if name != "boosting"),
    ],
)
def test_real_digits_are_learnt_and_shuffled_labels_are_not(name, images):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    train, test = (DIGITS.train, DIGITS.test) if images else FLAT
    learnt = scores(name, train, test)
    assert learnt["accuracy"] > 85
    assert torch.equal(torch.random.get_rng_state(), state)  # the global random state is left alone
    torch.manual_seed(2)
    assert learnt == scores(name, train, test)  # settings are fixed, and so is the seed
    shuffled = records(train.values, np.random.default_rng(0).permutation(train.labels.numpy()))
    assert (
        scores(name, shuffled, test)["accuracy"] < 30
    )  # control: chance is 10, its deviation is 1.6


def test_classes_that_synthetic_records_lack_count_as_wrong():
    train, test = (
        records([[0.0], [0.1], [1.0], [1.1]], [0, 0, 1, 1]),
        records([[0.0], [1.0], [2.0], [3.0]], range(4)),
    )
    found = scores("logreg", train, test)
    assert (found["accuracy"], found["balanced_accuracy"]) == (50.0, 50.0)


@pytest.mark.parametrize("name", ROW_CLASSIFIERS)
def test_balanced_accuracy_and_auc_tell_a_rare_class_from_guessing(name):
    """Nine in ten rows are of class 0; a classifier that knows nothing is right for these."""
    labels = (np.arange(2000) % 10 == 0).astype(int)
    rows = normal(2000, 3)
    move = 2.5 * labels[:, None]
    known = scores(name, records(rows + move, labels), records(normal(2000, 3, 1) + move, labels))
    blind = scores(name, records(rows, labels), records(normal(2000, 3, 1), labels))
    assert known["balanced_accuracy"] > 95
    assert known["auc"] > 0.99
    assert blind["accuracy"] > 80
    assert blind["balanced_accuracy"] < 56
    assert 0.4 < blind["auc"] < 0.6


def test_networks_want_images_and_two_classes():
    rows = records(np.zeros((4, 6), np.float32), range(4))
    with pytest.raises(InputError, match="images"):
        scores("cnn", rows, rows)
    with pytest.raises(InputError, match="2 classes"):
        scores("logreg", records(rows.values, [0] * 4), rows)
    with pytest.raises(InputError, match="classifier"):
        scores("tree", rows, rows)


def test_frechet_distance_of_normal_laws():
    """Closed form: shift and scale of independent coordinates."""
    rows = normal(200_000, 2)
    moved = normal(200_000, 2, 1) * [3.0, 1.0] + [0.0, 2.0]
    assert frechet(rows, moved) == pytest.approx(
        (3 - 1) ** 2 + 2**2, rel=0.02
    )  # five standard errors
    assert frechet(rows, rows) == pytest.approx(0, abs=1e-9)


def test_fidelity_finds_noise_collapse_shift_and_lost_correlations():
    real = normal(1500, 6)
    same, noisy, collapsed, shifted = (
        fidelity(made, real, columns=True)
        for made in (
            normal(1500, 6, 1),
            3 * normal(1500, 6, 1),
            0.05 * normal(1500, 6, 1),
            normal(1500, 6, 1) + 1,
        )
    )
    assert same["frechet"] < 0.05 < min(noisy["frechet"], collapsed["frechet"], shifted["frechet"])
    assert same["precision"] > 0.7 > 0.4 > noisy["precision"]
    assert same["recall"] > 0.7 > 0.2 > collapsed["recall"]
    assert np.allclose(shifted["column_distances"], 1, atol=0.15)  # in standard deviations
    assert max(same["column_distances"]) < 0.15
    assert same["halves"]["frechet"] < 0.05

    mixed = normal(3000, 2) @ np.array([[1.0, 0.9], [0.0, np.sqrt(1 - 0.81)]])
    found = fidelity(normal(3000, 2, 1), mixed, columns=True)
    assert found["correlation_difference"] == pytest.approx(0.9, abs=0.06)
    assert found["halves"]["correlation_difference"] < 0.05  # control


def test_synthetic_rows_and_real_halves_are_compared_at_the_same_size():
    """Forty rows have a large distance to others of their law, which real halves have as well."""
    real = normal(80, 20)
    found = fidelity(normal(5000, 20, 1), real, columns=False)
    assert found["frechet"] == pytest.approx(found["halves"]["frechet"], rel=0.3)
    # control: all synthetic rows are much nearer than the halves are to each other
    all_rows = compare(normal(5000, 20, 1), real, columns=False)
    assert all_rows["frechet"] < 0.5 * found["halves"]["frechet"]


def test_synthetic_records_of_classes_in_turn_are_compared_in_a_random_order():
    """Every second one of 4,000 records of ten classes in turn has five classes alone."""
    labels = torch.arange(4000) % 10
    centres = 20 * torch.eye(10)[labels]
    generator = torch.Generator().manual_seed(0)
    made, real = (
        Records(centres + torch.randn(4000, 10, generator=generator), labels) for _ in range(2)
    )
    found = evaluate(made, real, classifiers=("logreg",))["fidelity"]
    assert found["recall"] > 0.7
    # control: five of ten classes
    half = compare(made.vectors()[::2], real.vectors()[:2000], columns=False)
    assert half["recall"] < 0.6


def test_halves_are_alike_where_the_order_of_a_file_alternates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("made", 0), ("real", 1)):
        table = np.c_[normal(400, 2, seed), np.arange(400) % 2]
        lines = [",".join(map(str, row)) for row in table]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,size,man", *lines]))
    # control: men beside women
    assert compare(table[::2], table[1::2], columns=True)["recall"] < 0.1
    assert main(["evaluate", "made.csv", "real.csv"]) == 0
    path = tmp_path / "private" / tmp_path.name / "private_evaluation.json"
    halves = json.loads(path.read_text())["fidelity"]["halves"]
    assert halves["recall"] > 0.7
    assert halves["worst_column"]["total_variation"] < 0.25


def test_evaluation_of_images_and_of_rows_without_classes():
    found = evaluate(DIGITS.train, DIGITS.test, name="digits", classifiers=("logreg",))
    (row,) = found["rows"]
    assert (row["dataset"], row["train"], row["n_train"], row["n_test"]) == (
        "digits",
        "synthetic",
        1438,
        359,
    )
    assert row["accuracy"] > 90
    assert "column_distances" not in found["fidelity"]
    rows = Records(torch.rand(50, 3), torch.zeros(50, dtype=torch.int64))
    assert evaluate(rows, rows, classes=False)["rows"] == []
    with pytest.raises(InputError, match="shape"):
        evaluate(DIGITS.train, rows)


def test_figures_show_both_sides(tmp_path):
    rows, one = (
        Records(torch.rand(8, *shape), torch.tensor([0] * 7 + [1])) for shape in ((14,), (3, 9, 9))
    )
    figure(tmp_path / "rows.png", rows, rows, [f"c{i}" for i in range(14)])
    figure(tmp_path / "images.png", one, one)
    figure(tmp_path / "named.png", one, one, classes=["cats", "dogs"])
    pixels = {}
    for name in ("rows", "images", "named"):
        with Image.open(tmp_path / f"{name}.png") as image:
            pixels[name] = np.asarray(image.convert("L"))
        assert pixels[name].std() > 10
    # images are enlarged six times, and the titles are above them
    top = pixels["images"].shape[0] - 60 - 6
    first, same = (
        pixels["images"][top + 6 : top + 60, start : start + 54] for start in (6, 6 + 7 * 60)
    )
    assert np.array_equal(first, same)  # a real image and, behind a gap, a synthetic one
    assert (pixels["images"][:top] < 100).any()  # titles
    left = pixels["named"].shape[1] - pixels["images"].shape[1]
    assert (pixels["named"][top:, :left] < 100).any()  # names of classes
    second = pixels["named"][top + 66 : top + 120, left:]
    assert second[:, 6:60].std() > 10 > second[:, 66:120].std()  # a class of one image has its row


def test_a_network_is_trained_under_no_grad():
    """Evaluation is often called from code that needs no gradient of its own."""
    images = records(torch.rand(40, 1, 8, 8), np.arange(40) % 2)
    with torch.no_grad():
        row = scores("cnn", images, images)
        assert not torch.is_grad_enabled()
    assert row == scores("cnn", images, images)


def test_constant_records_have_no_frechet_distance():
    """The distance is relative to the variance of the real records, which is 0."""
    constant = np.ones((30, 4))
    for columns in (False, True):
        result = fidelity(normal(30, 4), constant, columns=columns)
        assert result["frechet"] is None
        assert result["halves"]["frechet"] is None


def test_a_test_part_is_matched_by_the_names_of_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    values = normal(80, 3) * [1.0, 10.0, 100.0]
    labels = np.arange(80) % 2
    parts = {"y_train": labels[:40], "y_test": labels[40:]}
    results = []
    for number, order in enumerate(([0, 1, 2], [2, 0, 1])):
        np.savez(
            f"real{number}.npz",
            x_train=values[:40, order],
            x_test=values[40:, order],
            columns=np.array(["age", "size", "weight"])[order],
            **parts,
        )
        real = f"real{number}.npz"
        out = ["--out", f"out{number}", "--json"]
        assert main(["evaluate", "real0.npz", real, "--classifiers", "logreg", *out]) == 0
        results.append(json.loads(capsys.readouterr().out))
    for figures in ("rows", "fidelity", "nearest"):
        first, second = [dict(figure=result[figures]) for result in results]
        assert str(first).replace("real0", "") == str(second).replace("real1", "")


def test_a_single_record_has_no_covariance(tmp_path, monkeypatch, capsys):
    with pytest.raises(InputError, match=r"at least 2 synthetic records .* got 1; draw more"):
        fidelity(normal(1, 3), normal(50, 3), columns=True)
    with pytest.raises(InputError, match=r"at least 2 real records .* got 1; pass more"):
        fidelity(normal(50, 3), normal(1, 3), columns=False)
    with pytest.raises(InputError, match="got 1"):
        frechet(normal(50, 3), normal(1, 3))
    assert np.isfinite(fidelity(normal(2, 3), normal(50, 3), columns=True)["frechet"])
    monkeypatch.chdir(tmp_path)
    np.save("one.npy", normal(1, 3))
    np.save("real.npy", normal(50, 3))
    assert main(["evaluate", "one.npy", "real.npy"]) == 2
    assert "got 1; draw more." in capsys.readouterr().err


def test_total_variation_is_that_of_known_laws():
    """Of uniform laws on [0, 1] and [s, 1 + s] it is s; of categories the sum of excess parts."""
    grid = np.arange(10_000) / 10_000
    assert total_variation(grid + 0.3, grid) == pytest.approx(0.3, abs=0.001)
    assert total_variation(grid, grid) == 0
    codes = np.repeat([0, 1, 2], [50, 30, 20])
    assert total_variation(np.repeat([0, 1, 2], [20, 30, 50]), codes) == pytest.approx(0.3)
    assert total_variation(codes[::-1], codes) == 0
    assert total_variation(np.full(10, 7.0), np.zeros(10)) == 0  # the bins are those of one value
    rare = np.repeat([0, 1], [97, 3])
    assert total_variation(np.zeros(100), rare) == pytest.approx(0.03)


def test_the_column_that_differs_most_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, move, seed in (("made", 1.0, 0), ("real", 0.0, 1)):
        table = normal(200, 3, seed)
        table[:, 1] += move
        lines = [",".join(map(str, row)) for row in table]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,size,weight", *lines]))
    assert main(["evaluate", "made.csv", "real.csv"]) == 0
    assert "column differs most       size: total variation 0." in capsys.readouterr().out
    path = tmp_path / "private" / tmp_path.name / "private_evaluation.json"
    figures = json.loads(path.read_text())["fidelity"]
    worst = figures["worst_column"]
    assert worst["column"] == "size"
    # normal laws at a distance of one standard deviation: 2 Phi(1 / 2) - 1, less in ten bins
    assert worst["total_variation"] == pytest.approx(0.383, abs=0.12)
    assert figures["halves"]["worst_column"]["total_variation"] < worst["total_variation"]
