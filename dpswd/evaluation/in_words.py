"""What the figures of an evaluation mean, in words.

The thresholds are those of docs/howto/evaluate.md. They are the same for images, vectors and
tables.
"""

from collections.abc import Sequence
from typing import Any

__all__ = ["verdict"]

# Part of the gain over guessing by real records that synthetic ones give, from which on a
# classifier learns nearly as much from them, most of it, or a small part.
_NEARLY_AS_MUCH = 0.95
_MOST = 0.5
_A_PART = 0.1
# Number of synthetic records below which the advice is to draw more.
_FEW = 2000
# Number of real records below which a comparison with them says little.
_FEW_REAL = 500
# Beside so few, part of the way from guessing to 100 % below which a classifier has learned little.
_HALFWAY = 0.5
# Number of classes below which there is nothing to tell apart.
_LEAST_CLASSES = 2
# Points by which training on real records must exceed guessing: below, there is nothing to learn.
_LEAST_GAIN = 5.0
# AUC up to which a classifier hardly tells synthetic records from real ones, and from which on it
# nearly always does.
_HARDLY = 0.6
_NEARLY_ALWAYS = 0.9
# pMSE, over that of two sets of real records, from which on relations between columns differ.
_DIFFERENT_RELATIONS = 10.0
# Recall, over that of real halves, below which synthetic records lack variety.
_LEAST_VARIETY = 0.5
# Part of the synthetic records that are close to a single real one, beyond the part expected of
# fresh real records, above which they look copied. By chance it is larger if few real records are
# held out.
_COPIES = 0.2

_LIMITS_OF_ROWS = (
    "Do not rely on a single row, whose cells may contradict each other, or on a single "
    "correlation, which may be noise."
)


def verdict(
    result: dict[str, Any], *, n_classes: int, is_image: bool, is_grey: bool = False
) -> str:
    """Return what the figures mean and what to do, in a few sentences.

    Accuracies are balanced ones, means of the classes, of the best classifier on each side.

    Args:
        result: Figures of :func:`dpswd.evaluation.evaluate`.
        n_classes: Number of classes of the test records.
        is_image: Whether the records are images.
        is_grey: Whether they are images without colour.

    Example:
        >>> import textwrap
        >>> figures = {
        ...     "rows": [{"balanced_accuracy": 94.1, "n_train": 10000}],
        ...     "real_rows": [{"balanced_accuracy": 96.5, "n_train": 1438}],
        ...     "two_sample": {"cnn": 0.58},
        ...     "fidelity": {"recall": 0.8, "halves": {"recall": 0.9}},
        ...     "nearest": {"close": 0.0, "expected": 0.01},
        ... }
        >>> print(textwrap.fill(verdict(figures, n_classes=10, is_image=True), 88))
        A classifier learns nearly as much from these records as from 1,438 real ones: the best
        one is right for 94.1 % (mean of the classes), 2.4 points less than after the real ones
        and 84.1 points more than by guessing. A classifier can hardly tell them from real
        records (AUC 0.58). Use them in place of real records to train and to test programs; the
        picture shows whether they look real.
    """
    accuracy = _best(result["rows"])
    real_accuracy = _best(result["real_rows"])
    n_real = max((row["n_train"] for row in result["real_rows"]), default=0)
    guessing = 100 / max(1, n_classes)
    part = None
    if accuracy is not None and real_accuracy is not None:
        gain = real_accuracy - guessing
        if gain >= _LEAST_GAIN:
            part = (accuracy - guessing) / gain
    # The areas are compared as they are printed, so that both agree.
    areas = [round(area, 2) for area in result["two_sample"].values() if area is not None]
    is_recognised = max(areas, default=0.0) >= _NEARLY_ALWAYS
    lacks_variety = _lacks_variety(result["fidelity"])
    sentences = []
    if accuracy is not None and n_classes > 1:
        sentences.append(_of_accuracy(accuracy, real_accuracy, n_real, guessing, part))
    if areas:
        sentences.append(_of_two_samples(max(areas), _pmse_ratio(result)))
    if lacks_variety:
        sentences.append("They have less than half of the variety of real records.")
    nearest = result["nearest"]
    if nearest is not None and nearest["close"] - nearest["expected"] > _COPIES:
        sentences.append(
            f"{nearest['close']:.0%} of them look like copies of single real records: find out why "
            "before you publish them."
        )
    elif not areas:
        sentences.append("Pass at least 20 real records to learn more.")
    else:
        is_weak = part is not None and part < _NEARLY_AS_MUCH
        differs = is_recognised or lacks_variety
        n_synthetic = max((row["n_train"] for row in result["rows"]), default=0)
        draws_more = n_synthetic < _FEW and not is_recognised
        remedies = _remedies(draws_more, n_classes, is_image, is_grey)
        says_little = not is_weak and _is_low_beside_few(accuracy, n_real, guessing)
        if part is None or says_little:
            sentences.append(_advice_without_gain(differs, is_image))
        else:
            sentences.append(_advice(is_weak, differs, is_image, remedies))
    return " ".join(sentences)


def _best(rows: Sequence[dict[str, Any]]) -> float | None:
    """Return the best balanced accuracy in percent; ``None`` without classifiers."""
    return max((row["balanced_accuracy"] for row in rows), default=None)


def _is_low_beside_few(accuracy: float | None, n_real: int, guessing: float) -> bool:
    """Return whether the accuracy is low, beside few real records.

    The comparison does not show then that the records are good for training. For example, 44 % of
    three classes is low, where guessing reaches 33 %, and 150 real records are few.
    """
    if accuracy is None or n_real >= _FEW_REAL:
        return False
    return accuracy - guessing < _HALFWAY * (100 - guessing)


def _lacks_variety(fidelity: dict[str, Any]) -> bool:
    """Return whether recall is far below that of real halves."""
    recall = fidelity.get("recall")
    real_recall = fidelity.get("halves", {}).get("recall")
    if recall is None or real_recall is None:
        return False
    return bool(recall < _LEAST_VARIETY * real_recall)


def _of_accuracy(
    accuracy: float, real_accuracy: float | None, n_real: int, guessing: float, part: float | None
) -> str:
    """Return a sentence on what a classifier learns, beside real records and guessing."""
    right = f"the best one is right for {accuracy:.1f} % (mean of the classes)"
    gain = f"{_points(accuracy - guessing)} than by guessing"
    if real_accuracy is None:
        return f"A classifier learns from these records: {right}, {gain}."
    if part is None:
        return (
            f"{n_real:,} real records teach a classifier hardly more than guessing: after them, "
            f"the best one is right for {real_accuracy:.1f} % (mean of the classes). After the "
            f"synthetic records, it is right for {accuracy:.1f} %, {gain}."
        )
    if part >= 1:
        learned = f"A classifier learns as much from these records as from {n_real:,} real ones"
    elif part >= _NEARLY_AS_MUCH:
        learned = (
            f"A classifier learns nearly as much from these records as from {n_real:,} real ones"
        )
    elif part >= _MOST:
        learned = f"A classifier learns most of what {n_real:,} real records teach it"
    elif part >= _A_PART:
        learned = f"A classifier learns less than half of what {n_real:,} real records teach it"
    else:
        learned = f"A classifier learns next to nothing of what {n_real:,} real records teach it"
    loss = f"{_points(accuracy - real_accuracy)} than after the real ones"
    sentence = f"{learned}: {right}, {loss} and {gain}."
    if part >= _NEARLY_AS_MUCH and n_real < _FEW_REAL:
        sentence += " So few real records teach little: more of them would be a harder comparison."
    return sentence


def _points(difference: float) -> str:
    """Return a difference of percentages, as in "2.4 points less"."""
    direction = "less" if difference < 0 else "more"
    return f"{abs(difference):.1f} points {direction}"


def _pmse_ratio(result: dict[str, Any]) -> float:
    """Return pMSE over that of two sets of real records; 0 where it is not measured."""
    propensity = result.get("propensity")
    if propensity is None:
        return 0.0
    return float(propensity["ratio"])


def _of_two_samples(area: float, pmse_ratio: float) -> str:
    """Return a sentence on how well both sides can be told apart.

    A classifier of few records may miss a relation between columns that a regression on their
    products sees. For example, the discharge of a synthetic patient may lie before the admission.
    """
    if area <= _HARDLY and pmse_ratio >= _DIFFERENT_RELATIONS:
        return (
            f"A classifier can hardly tell them from real records (AUC {area:.2f}), but a "
            f"regression on all columns can (pMSE, {pmse_ratio:.0f} times that of real records): "
            "a relation between columns is lost, such as that of two dates."
        )
    if area <= _HARDLY:
        return f"A classifier can hardly tell them from real records (AUC {area:.2f})."
    if area < _NEARLY_ALWAYS:
        return f"A classifier often tells them from real records (AUC {area:.2f})."
    return f"A classifier nearly always tells them from real records (AUC {area:.2f})."


def _remedies(draws_more: bool, n_classes: int, is_image: bool, is_grey: bool) -> str:
    """Return what would make a classifier learn more from synthetic records.

    Args:
        draws_more: Whether more synthetic records would help: there are few, and they resemble
            real ones.
        n_classes: Number of classes.
        is_image: Whether they are images.
        is_grey: Whether they are images without colour, which may be shapes.
    """
    remedies = ["more private records", "a larger budget"]
    if draws_more:
        remedies.insert(0, "more synthetic records, which cost no privacy")
    if not is_image:
        remedies.append("fewer columns")
    if n_classes > _LEAST_CLASSES:
        remedies.append("fewer classes")
    if is_image and is_grey:
        remedies.append("for drawings on a plain ground --shapes")
    elif is_image:
        remedies.append("grey pictures")
    return ", ".join(remedies)


def _advice(is_weak: bool, differs: bool, is_image: bool, remedies: str) -> str:
    """Return what the records are good for, or what would make them better.

    Args:
        is_weak: Whether a classifier learns less from them than from real records.
        differs: Whether they are recognised nearly always, or lack variety.
        is_image: Whether they are images.
        remedies: The result of :func:`_remedies`.
    """
    if is_weak:
        return f"What helps: {remedies}."
    if differs:
        return (
            "Use them to train and to test programs, and not where each of them has to look real. "
            f"{_against_differences(is_image)}"
        )
    use = "Use them in place of real records to train and to test programs"
    if is_image:
        return f"{use}; the picture shows whether they look real."
    return f"{use}. {_LIMITS_OF_ROWS}"


def _advice_without_gain(differs: bool, is_image: bool) -> str:
    """Return advice where no gain by training on real records was measured.

    No classifier was trained then, or none on real records that exceeds guessing, or too few real
    records were at hand.

    Args:
        differs: Whether the records are recognised nearly always, or lack variety.
        is_image: Whether they are images.
    """
    if differs:
        return _against_differences(is_image)
    if is_image:
        return "The picture shows whether they look real."
    return _LIMITS_OF_ROWS


def _against_differences(is_image: bool) -> str:
    """Return what makes synthetic records resemble real ones more."""
    change = "smaller pictures" if is_image else "fewer columns"
    return f"What helps: more records, a larger budget or {change}."
