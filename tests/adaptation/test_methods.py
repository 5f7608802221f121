"""Adaptation methods: displacement of classes, names and copies of methods."""

import numpy as np
import ot.da
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dpswd import InputError
from dpswd.adaptation.methods import ImageMap, class_shift, resolve_method


def test_class_shift_moves_each_class_by_its_displacement():
    rng = np.random.default_rng(0)
    numbers = np.arange(90) % 3
    centres = np.array([[0, 0], [20, 0], [0, 20]])
    rows = centres[numbers] + rng.normal(size=(90, 2))
    displacements = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]])
    target = rows + displacements[numbers]
    moved = class_shift(rows, numbers, target, seed=0)
    # The transport matches the classes; within a class only the mean of its matches counts.
    np.testing.assert_allclose(moved, target, atol=1e-9)


def test_class_shift_of_a_class_without_a_match_is_that_of_all_records(monkeypatch):
    monkeypatch.setattr("dpswd.adaptation.methods._MOST_MATCHED", 10)  # in place of 4,000 records
    rows = np.random.default_rng(0).normal(size=(40, 2))
    order = np.random.default_rng(0).permutation(40)
    numbers = np.zeros(40, dtype=int)
    numbers[order[10:]] = 1
    moved = class_shift(rows, numbers, rows[order[:10]] + 5.0, seed=0)
    np.testing.assert_allclose(moved, rows + 5.0)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("image_map", ImageMap),
        (ot.da.EMDTransport(), ot.da.EMDTransport),
        (LogisticRegression(C=3.0), LogisticRegression),
    ],
    ids=["name", "transport", "classifier"],
)
def test_resolve_method_returns_a_copy(method, kind):
    resolved = resolve_method(method, has_images=True)
    assert type(resolved) is kind
    assert resolved is not method


class Nearest:
    """A classifier that scikit-learn cannot copy."""

    def fit(self, X, y, sample_domain):
        return self

    def predict(self, X):
        return X[:, 0]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("nothing", "method='class_shift'"),
        (3, "method='class_shift'"),
        ("image_map", "Expected images"),
        (ImageMap(), "Expected images"),
        (Nearest(), "BaseEstimator"),
    ],
)
def test_resolve_method_refuses_what_does_not_fit_vectors(method, message):
    with pytest.raises(InputError, match=message):
        resolve_method(method, has_images=False)


def test_image_map_leaves_the_global_random_state():
    images = torch.rand(20, 1, 8, 8)
    numbers = torch.arange(20) % 2
    method = ImageMap(n_steps=2, shift=1.0)
    state = torch.random.get_rng_state()
    networks = [method.fit(images, numbers, None, seed=3) for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(networks[0](images), networks[1](images))
    assert not networks[0].training


@pytest.mark.parametrize(
    ("options", "name"),
    [({"n_steps": 0}, "n_steps"), ({"lift": 1.0}, "lift"), ({"zoom": -1}, "zoom")],
)
def test_image_map_refuses_options_out_of_range(options, name):
    with pytest.raises(InputError, match=name):
        ImageMap(**options)


def test_image_map_shows_its_steps_and_holds_examples(capfd):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(40, 1, 8, 8, generator=generator)
    method = ImageMap(n_steps=8)
    method.fit(images, torch.arange(40) % 2, images.square(), seed=0, progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("Classifier: ")] == [
        f"Classifier: step {step} of 8" for step in (0, 2, 4, 6)
    ]
    assert [line.split(":")[0] for line in lines].count("Image map") == 4
    assert method.examples.shape == (10, 1, 8, 8)
    # the target is darker, and so are the mapped images
    assert method.examples.mean() < images[:10].mean() - 0.05
    method.fit(images, torch.arange(40) % 2, None, seed=0)
    assert capfd.readouterr().err == ""
