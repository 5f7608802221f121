"""Downstream accuracy: what it measures, on records where the answer is known."""

import numpy as np
import pytest
import torch

from dpswd import InputError
from dpswd.data import Digits
from dpswd.generation.evaluation import CLASSIFIERS, SmallCNN, accuracy, flat, train_cnn


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("images", [True, False])
def test_real_digits_are_learnt_and_shuffled_labels_are_not(name, images):
    data = Digits()
    train = (flat(data.private.floats()), data.private.labels.numpy())
    test = (flat(data.test.floats()), data.test.labels.numpy())
    learnt = accuracy(name, train, test, images)
    assert learnt > 90
    assert learnt == accuracy(name, train, test, images)  # settings are fixed, and so is the seed
    shuffled = (train[0], np.random.default_rng(0).permutation(train[1]))
    assert accuracy(name, shuffled, test, images) < 30  # control: chance is 10, its deviation on 359 is 1.6


def test_classes_that_synthetic_records_lack_count_as_wrong():
    train = (np.array([[0.0], [0.1], [1.0], [1.1]], dtype=np.float32), np.array([0, 0, 1, 1]))
    test = (np.array([[0.0], [1.0], [2.0], [3.0]], dtype=np.float32), np.array([0, 1, 2, 3]))
    assert accuracy("logreg", train, test, False) == 50.0


def test_no_such_classifier():
    with pytest.raises(InputError, match="Expected classifier to be one of logreg, mlp, got classifier='svm'"):
        accuracy("svm", (np.zeros((2, 1)), np.arange(2)), (np.zeros((2, 1)), np.arange(2)), True)


def test_flat():
    assert flat(torch.zeros(3, 1, 4, 4)).shape == (3, 16)
    assert flat(torch.zeros(3, 7, dtype=torch.float64)).dtype == np.float32


def test_cnn_learns_real_digits_and_not_shuffled_labels():
    data = Digits()
    train = (flat(data.private.floats()), data.private.labels.numpy())
    test = (flat(data.test.floats()), data.test.labels.numpy())
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    learnt = accuracy("cnn", train, test, True, (1, 8, 8))
    assert learnt > 85
    assert torch.equal(torch.random.get_rng_state(), state)  # the global random state is left alone
    torch.manual_seed(2)
    assert learnt == accuracy("cnn", train, test, True, (1, 8, 8))
    shuffled = (train[0], np.random.default_rng(0).permutation(train[1]))
    assert accuracy("cnn", shuffled, test, True, (1, 8, 8)) < 30  # control, as above


def test_cnn_wants_images():
    rows = (np.zeros((4, 6), np.float32), np.arange(4))
    for shape in (None, (6,)):
        with pytest.raises(InputError, match=r"Expected the shape \(channels, height, width\) of the images"):
            accuracy("cnn", rows, rows, False, shape)
    with pytest.raises(InputError, match=r"Expected images \(n, channels, h, w\) and as many labels"):
        train_cnn(torch.zeros(4, 6), torch.arange(4), 4)


def test_cnn_takes_any_size_and_colour():
    for channels, side in ((1, 28), (3, 64), (3, 8)):
        assert SmallCNN(channels, 5)(torch.zeros(2, channels, side, side)).shape == (2, 5)
