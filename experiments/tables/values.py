"""Values of results as text; a value that was not measured is a dash."""

from experiments.results import Row, read_result

MISSING = "-"
CLASSIFIERS = {"logreg": "LogReg", "mlp": "MLP", "cnn": "CNN"}


def number(value: float | None, form: str) -> str:
    """Format a number that may be missing, as in ``number(0.25, ".1f")``."""
    if value is None:
        return MISSING
    return format(value, form)


def milliseconds(seconds: float) -> str:
    """Format a time in milliseconds: whole ones above 0.1 s, three digits below."""
    if seconds > 0.1:
        return f"{seconds * 1e3:,.0f}"
    return f"{seconds * 1e3:.3g}"


def microseconds(seconds: float) -> str:
    """Format a time in whole microseconds."""
    return f"{seconds * 1e6:.0f}"


def megabytes(n_bytes: float | None) -> str:
    """Format a number of bytes in whole megabytes."""
    if n_bytes is None:
        return MISSING
    return f"{n_bytes * 1e-6:,.0f}"


def gigabytes(n_bytes: float) -> str:
    """Format a number of bytes in gigabytes."""
    return f"{n_bytes * 1e-9:.2f}"


def percent(fraction: float) -> str:
    """Format a fraction in percent."""
    return f"{100 * fraction:.1f} %"


def score(row: Row) -> str:
    """Format an accuracy in percent with its standard deviation over seeds."""
    if row["mean"] is None:
        return MISSING
    if row["std"] is None:
        return f"{row['mean']:.1f}"
    return f"{row['mean']:.1f} ± {row['std']:.1f}"


def seeds(rows: list[Row]) -> str:
    """Return how many seeds the rows have, as "one seed" or "1 to 3 seeds"."""
    numbers = [row["seeds"] for row in rows]
    fewest = min(numbers)
    most = max(numbers)
    if fewest < most:
        return f"{fewest} to {most} seeds"
    if most == 1:
        return "one seed"
    words = {2: "two", 3: "three", 5: "five"}
    return f"{words.get(most, most)} seeds"


def classifier(row: Row) -> str:
    """Return the classifier of a row as the pages spell it."""
    name: str = row["classifier"]
    return CLASSIFIERS.get(name, name)


def epsilon_or(row: Row, none: str) -> str:
    """Return the epsilon of a row, or ``none`` for a row without a guarantee."""
    if row["epsilon"] is None:
        return none
    return f"ε = {row['epsilon']:g}"


def claim(row: Row) -> str:
    """Return the epsilon of a model, and whether an unsound method claims it."""
    if row["epsilon"] is None:
        return "none"
    epsilon = f"ε = {row['epsilon']:g}"
    if row["sound"] or row.get("conditions"):
        return epsilon
    if row["sound"] is False:
        return f"{epsilon} claimed, **unsound**"
    return f"{epsilon} claimed"


def guarantee(row: Row) -> str:
    """Return :func:`claim` with mu, and whether it holds under conditions only."""
    text = claim(row)
    if row["epsilon"] is None:
        return text
    if row.get("conditions"):
        return f"{text}, μ = {row['mu']:.3g}, conditional"
    if row["sound"]:
        return f"{text}, μ = {row['mu']:.3g}"
    return text


def matches(row: Row, **values: object) -> bool:
    """Whether a row has these values; a tuple lists several that are allowed."""
    for key, expected in values.items():
        if not isinstance(expected, tuple):
            expected = (expected,)
        if row[key] not in expected:
            return False
    return True


def select(rows: list[Row], **values: object) -> list[Row]:
    """Return the rows that have the values, see :func:`matches`."""
    return [row for row in rows if matches(row, **values)]


def score_of_same_test(row: Row, *sources: str, **values: object) -> str:
    """Format the score of another method with the same data set and classifier.

    The first row of the results ``sources`` that has the ``values`` counts; a dash stands for none.
    """
    for source in sources:
        same = select(
            read_result(source)["rows"],
            dataset=row["dataset"],
            classifier=row["classifier"],
            **values,
        )
        if same:
            return score(same[0])
    return MISSING
