"""Two-sample tests, features of images, and the FID with random weights."""

import hashlib

import numpy as np
import pytest
import torch
from factories import refused

import dpswd.evaluation.images as images_module
from dpswd import InputError
from dpswd.commands.main import main
from dpswd.evaluation.images import WEIGHTS, fid
from dpswd.evaluation.two_sample import two_sample_test
from dpswd.records import Records


def records(values):
    return Records(values, torch.zeros(len(values), dtype=torch.int64))


def normal(n, seed, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return records(torch.randn(n, 4, generator=generator) + shift)


def strokes(n, seed):
    """Draw images of one bright line each."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(n, 1, 12, 12)
    for image, row in zip(images, torch.randint(12, (n,), generator=generator), strict=True):
        image[0, row] = 1
    return images


def clouds(n, seed):
    """Draw images with the mean and the covariance of strokes, and none of their lines."""
    real = strokes(4 * n, seed + 1).flatten(1)
    centred = real - real.mean(0)
    weights = torch.randn(n, len(real), generator=torch.Generator().manual_seed(seed))
    rows = real.mean(0) + weights @ centred / len(real) ** 0.5
    return rows.unflatten(1, (1, 12, 12)).clamp(0, 1)


def test_equal_laws_cannot_be_told_apart():
    """The AUC of 2,000 records is within 5 standard deviations, 0.013 each, of a half."""
    areas = two_sample_test(normal(2000, 1), normal(2000, 2))
    assert set(areas) == {"logreg", "boosting"}
    for area in areas.values():
        assert abs(area - 0.5) < 0.065


def test_a_shift_is_found():
    assert two_sample_test(normal(1000, 1, shift=2.0), normal(1000, 2))["logreg"] > 0.95


def test_clouds_with_the_moments_of_images_are_told_from_images():
    real = records(strokes(600, 0))
    assert two_sample_test(records(clouds(600, 3)), real)["cnn"] > 0.9
    control = two_sample_test(records(strokes(600, 5)), real)["cnn"]
    assert abs(control - 0.5) < 0.12


def test_few_records_are_not_tested():
    assert two_sample_test(normal(19, 1), normal(500, 2)) == {}


def test_evaluate_shows_the_test_and_the_most_frequent_class(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    labels = np.r_[np.zeros(60, int), np.ones(40, int)]
    for name, seed in (("made", 0), ("test", 1)):
        np.savez(f"{name}.npz", images=strokes(100, seed).numpy()[:, 0], labels=labels)
    assert main(["evaluate", "made.npz", "test.npz", "--classifiers", "logreg"]) == 0
    text = capfd.readouterr().out
    assert "Synthetic or real, AUC" in text
    assert "the most frequent class" in text
    assert "60.0 %" in text


def test_fid_without_weights_says_where_to_get_them(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    np.savez("made.npz", images=strokes(30, 0).numpy()[:, 0], labels=np.arange(30) % 2)
    words = ["evaluate", "made.npz", "made.npz", "--fid"]
    assert WEIGHTS in refused(capfd, *words)
    assert "got no file" in refused(capfd, *words, "--weights", "none.pth")
    (tmp_path / "other.pth").write_bytes(b"other")
    assert "got another file" in refused(capfd, *words, "--weights", "other.pth")


@pytest.mark.slow
def test_fid_by_random_weights(tmp_path, monkeypatch):
    """The true weights are a download; random ones show that the code runs, and its order."""
    inception = pytest.importorskip("pytorch_fid.inception")

    # the network of pytorch-fid is built and then loaded: its random state is what is needed
    network = None
    original = torch.nn.Module.load_state_dict

    def keep(module, state, *arguments, **options):
        nonlocal network
        network = module
        return original(module, module.state_dict())

    with monkeypatch.context() as patch:
        patch.setattr(inception, "load_state_dict_from_url", lambda *_, **__: {})
        patch.setattr(torch.nn.Module, "load_state_dict", keep)
        inception.fid_inception_v3()
    path = tmp_path / "weights.pth"
    torch.save(network.state_dict(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(images_module, "DIGEST", digest)
    hub = torch.hub.get_dir()
    near = fid(path, strokes(12, 0), strokes(12, 1))
    far = fid(path, strokes(12, 0), torch.ones(12, 1, 12, 12))
    assert 0 <= near < far
    assert torch.hub.get_dir() == hub


def test_other_weights_are_refused(tmp_path):
    path = tmp_path / "weights.pth"
    path.write_bytes(b"")
    with pytest.raises(InputError, match="another file"):
        fid(path, strokes(2, 0), strokes(2, 1))
