"""Public tables with columns of many kinds, and the facts of their columns.

Adult: the lists of categories are those of the UCI repository. RAND: the person-years of the Health
Insurance Experiment of the RAND corporation, in the public domain, as ``statsmodels`` has them in
``datasets/randhie/src/randhie.csv``. Self-rated health is one column made of three indicators;
fractions, some of which were imputed, are in percent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpswd.columns import Table
from dpswd.data.reading import data_root
from dpswd.errors import InputError

ADULT_COLUMNS: dict[str, dict[str, Any]] = {
    "age": {"kind": "integer", "low": 17, "high": 90},
    "fnlwgt": {"kind": "integer", "low": 0, "high": 1_500_000},
    "education-num": {"kind": "integer", "low": 1, "high": 16},
    "capital-gain": {"kind": "integer", "low": 0, "high": 99_999},
    "capital-loss": {"kind": "integer", "low": 0, "high": 5_000},
    "hours-per-week": {"kind": "integer", "low": 1, "high": 99},
    "sex": {"kind": "binary", "categories": "Female|Male"},
    "workclass": {
        "kind": "nominal",
        "categories": (
            "Federal-gov|Local-gov|Never-worked|Private|Self-emp-inc|Self-emp-not-inc|"
            "State-gov|Without-pay"
        ),
        "missing": "?",
    },
    "education": {
        "kind": "nominal",
        "categories": (
            "10th|11th|12th|1st-4th|5th-6th|7th-8th|9th|Assoc-acdm|Assoc-voc|Bachelors|"
            "Doctorate|HS-grad|Masters|Preschool|Prof-school|Some-college"
        ),
    },
    "marital-status": {
        "kind": "nominal",
        "categories": (
            "Divorced|Married-AF-spouse|Married-civ-spouse|Married-spouse-absent|"
            "Never-married|Separated|Widowed"
        ),
    },
    "occupation": {
        "kind": "nominal",
        "categories": (
            "Adm-clerical|Armed-Forces|Craft-repair|Exec-managerial|Farming-fishing|"
            "Handlers-cleaners|Machine-op-inspct|Other-service|Priv-house-serv|"
            "Prof-specialty|Protective-serv|Sales|Tech-support|Transport-moving"
        ),
        "missing": "?",
    },
    "relationship": {
        "kind": "nominal",
        "categories": "Husband|Not-in-family|Other-relative|Own-child|Unmarried|Wife",
    },
    "race": {
        "kind": "nominal",
        "categories": "Amer-Indian-Eskimo|Asian-Pac-Islander|Black|Other|White",
    },
    "native-country": {
        "kind": "nominal",
        "categories": (
            "Cambodia|Canada|China|Columbia|Cuba|Dominican-Republic|Ecuador|El-Salvador|"
            "England|France|Germany|Greece|Guatemala|Haiti|Holand-Netherlands|Honduras|"
            "Hong|Hungary|India|Iran|Ireland|Italy|Jamaica|Japan|Laos|Mexico|Nicaragua|"
            "Outlying-US(Guam-USVI-etc)|Peru|Philippines|Poland|Portugal|Puerto-Rico|"
            "Scotland|South|Taiwan|Thailand|Trinadad&Tobago|United-States|Vietnam|"
            "Yugoslavia"
        ),
        "missing": "?",
    },
}

RAND_COLUMNS: dict[str, dict[str, Any]] = {
    "plan": {"kind": "nominal", "categories": [str(number) for number in range(1, 20)]},
    "site": {"kind": "nominal", "categories": "1|2|3|4|5|6"},
    "year": {"kind": "integer", "low": 1, "high": 5},
    "health": {"kind": "nominal", "categories": "excellent|good|fair|poor", "other": False},
    "female": {"kind": "binary"},
    "child": {"kind": "binary"},
    "tookphys": {"kind": "binary"},
    "black": {"kind": "integer", "low": 0, "high": 100},
    "physlm": {"kind": "integer", "low": 0, "high": 100},
    "xage": {"kind": "integer", "low": 0, "high": 65},
    "income": {"kind": "integer", "low": 0, "high": 30_000},
    "educdec": {"kind": "integer", "low": 0, "high": 25, "missing": True},
    "num": {"kind": "integer", "low": 1, "high": 14},
    "mhi": {"kind": "integer", "low": 0, "high": 100},
    "disea": {"kind": "integer", "low": 0, "high": 60},
    "ghindx": {"kind": "integer", "low": 0, "high": 100, "missing": True},
}


@dataclass(frozen=True)
class MixedTable:
    """A public table, whose cells are text.

    Attributes:
        name: Its name.
        frame: The columns with facts, and the column of classes.
        columns: Facts of the columns.
        target: Name of the column of classes.
        classes: The two classes.
        split: Maps a seed to the positions of training records and of test records.
    """

    name: str
    frame: Any
    columns: dict[str, dict[str, Any]]
    target: str
    classes: list[str]
    split: Callable[[int], tuple[NDArray[np.int64], NDArray[np.int64]]]

    def parts(self, seed: int) -> tuple[Any, Any]:
        """Return training records and test records as DataFrames."""
        train, test = self.split(seed)
        return (
            self.frame.iloc[train].reset_index(drop=True),
            self.frame.iloc[test].reset_index(drop=True),
        )

    @property
    def table(self) -> Table:
        """Facts of the columns."""
        return Table.of(self.columns)

    def numbers(self, frame: Any) -> NDArray[np.float64]:
        """Return the columns (n, d) as numbers, categories by their position."""
        table = self.table
        return table.numbers({name: frame[name].tolist() for name in table.names}, self.name)

    def labels(self, frame: Any) -> NDArray[np.int64]:
        """Return the numbers (n,) of the classes."""
        return np.asarray((frame[self.target] == self.classes[1]).to_numpy().astype(int))


def adult(data: Path | None) -> MixedTable:
    """Return all 14 columns of Adult; 26,000 random records train."""
    frame = _read(data, "adult/adult.csv", "the columns of the UCI repository")

    def split(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        order = np.random.default_rng(seed).permutation(len(frame))
        return order[:26_000], order[26_000:]

    return MixedTable("Adult", frame, ADULT_COLUMNS, "income", ["<=50K", ">50K"], split)


def rand(data: Path | None) -> MixedTable:
    """Return 16 columns of RAND, and whether a person had any medical expense.

    A record is a year of a person. Four of five persons train with all of their years.
    """
    what = "datasets/randhie/src/randhie.csv of statsmodels"
    frame = _read(data, "randhie/randhie.csv", what)
    health = np.full(len(frame), "excellent", dtype=object)
    for column, name in (("hlthg", "good"), ("hlthf", "fair"), ("hlthp", "poor")):
        health[frame[column] == "1"] = name
    persons = frame["zper"]
    columns = {"health": health}
    for name in ("black", "physlm"):
        columns[name] = (100 * frame[name].astype(float)).round().astype(int).astype(str)
    frame = frame.assign(**columns)[[*RAND_COLUMNS, "binexp"]]

    def split(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        names = np.unique(persons)
        order = np.random.default_rng(seed).permutation(len(names))
        is_train = np.isin(persons, names[order[: 4 * len(names) // 5]])
        return np.flatnonzero(is_train), np.flatnonzero(~is_train)

    return MixedTable("RAND", frame, RAND_COLUMNS, "binexp", ["0", "1"], split)


def _read(data: Path | None, name: str, what: str) -> Any:
    """Return a file of the directory of data sets as a DataFrame of text."""
    import pandas as pd  # an optional package

    path = data_root(data) / name
    if not path.exists():
        raise InputError(f"Expected {path} with {what}, got none; see docs/tables.md.")
    return pd.read_csv(path, skipinitialspace=True, dtype=str, keep_default_na=False)
