"""Private targets of two neighbours, as they are read: one record changes one record."""

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from dpswd import InputError
from dpswd.adaptation.reading import read_records
from dpswd.lightning import AdaptationData

RNG = np.random.default_rng(0)
SOURCE = RNG.random((20, 3))
LABELS = np.arange(20) % 2


def write_squares(folder, sides):
    """Write an image of noise for each side; the images of one place are of one seed."""
    folder.mkdir()
    for place, side in enumerate(sides):
        pixels = np.random.default_rng(place).integers(0, 255, (side, side), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{place}.png")


def test_one_image_does_not_decide_the_size_to_which_all_are_read(tmp_path):
    """Most images of one neighbour are of side 8, and of the other of side 64."""
    write_squares(tmp_path / "one", [8, 8, 8, 64, 64])
    write_squares(tmp_path / "other", [8, 8, 64, 64, 64])
    one = read_records(str(tmp_path / "one"), (1, 12, 8)).records
    other = read_records(str(tmp_path / "other"), (1, 12, 8)).records
    changed = [place for place in range(5) if not np.array_equal(one[place], other[place])]
    assert changed == [2]


def opened_of_persons(tmp_path, persons, **options):
    """Return the entries of a target whose records are of these persons."""
    target = RNG.random((len(persons), 3)).astype(np.float32)
    target[:, 0] = persons
    np.savez(tmp_path / "source.npz", features=SOURCE, labels=LABELS)
    np.savez(tmp_path / "target.npz", features=target, patient=np.array(persons))
    data = AdaptationData(
        str(tmp_path / "source.npz"), str(tmp_path / "target.npz"), unit="patient", **options
    )
    entries, _ = data.records.open_records(np.arange(data.records.n_entries))
    return sorted(entries[:, 0].int().tolist())


def test_the_first_persons_do_not_depend_on_the_number_of_records_of_one(tmp_path):
    """Person 0 of the second neighbour has nine records, and comes last in the third one."""
    others = list(range(1, 20))
    for persons in ([0, *others], [0] * 9 + others):
        assert opened_of_persons(tmp_path, persons, n_target=10) == list(range(10))
    assert opened_of_persons(tmp_path, [*others, 0], n_target=10) == list(range(1, 11))


@pytest.mark.parametrize("ending", [".mat", ".csv"])
@pytest.mark.parametrize("entry", [1e300, np.nan])
def test_a_number_beyond_float32_in_a_file_of_features_warns_of_nothing(tmp_path, ending, entry):
    """A warning, which is an error in these tests, would tell of the record."""
    target = SOURCE.copy()
    target[3, 1] = entry
    savemat(tmp_path / "source.mat", {"features": SOURCE, "labels": LABELS})
    if ending == ".mat":
        savemat(tmp_path / "target.mat", {"features": target, "labels": LABELS})
    else:
        np.savetxt(tmp_path / "target.csv", np.column_stack([target, LABELS]), delimiter=",")
    sources = (str(tmp_path / "source.mat"), str(tmp_path / f"target{ending}"))
    records = AdaptationData(*sources, features=True, unreadable="zero").records
    values, _ = records.open_records(np.arange(20))
    assert values[3].tolist() == [0, 0, 0]
    np.testing.assert_allclose(values[4:], SOURCE[4:], rtol=1e-6)
    with pytest.raises(InputError, match="finite"):
        AdaptationData(*sources, features=True).records  # noqa: B018  # read at the access
