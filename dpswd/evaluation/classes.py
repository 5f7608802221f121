"""Classes of two sets of records, matched by their names."""

import dataclasses
from typing import Any

import torch

from dpswd._keys import label_key
from dpswd.errors import InputError
from dpswd.files.export import folder_names
from dpswd.records import Records

_MAX_NAMES = 5  # unknown classes in a message


def renumbered(test: Records, classes: list[Any], wanted: list[Any]) -> Records:
    """Return test records whose labels are positions in another list of classes.

    Args:
        test: Records whose labels are positions in ``classes``.
        classes: Names of their classes.
        wanted: Names of the classes of the synthetic records or of the classifier.

    Raises:
        InputError: If ``classes`` has a name that ``wanted`` does not have.
    """
    numbers = {label_key(name): number for number, name in enumerate(wanted)}
    number_of_class = []
    unknown = []
    for name, folder in zip(classes, folder_names(classes), strict=True):
        # synthetic images in folders have the names of the folders
        number = numbers.get(label_key(name), numbers.get(label_key(folder)))
        if number is None:
            unknown.append(str(name))
        else:
            number_of_class.append(number)
    if unknown:
        raise InputError(
            f"Expected test records of the classes {', '.join(map(str, wanted))}, got "
            f"{', '.join(unknown[:_MAX_NAMES])}."
        )
    return dataclasses.replace(test, labels=torch.tensor(number_of_class)[test.labels])
