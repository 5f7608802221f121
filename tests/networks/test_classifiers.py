"""Classifier networks: shapes of images and scores."""

import pytest
import torch

from dpswd.networks.classifiers import SmallCNN


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 13, 9), (3, 64, 48)])
def test_small_cnn_maps_images_of_every_size_to_scores(shape):
    network = SmallCNN(shape[0], n_outputs=4)
    assert network(torch.rand(6, *shape)).shape == (6, 4)
