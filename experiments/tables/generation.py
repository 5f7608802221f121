"""Tables on generation.

They stand in README.md and docs/generation*.md, networks.md, imagebench.md, negative-results.md and
celeba.md.
"""

from experiments.generation.table2_published import PRINTED
from experiments.results import Result, Row, read_result
from experiments.tables.markdown import Pivot, Table, with_origin
from experiments.tables.values import (
    CLASSIFIERS,
    claim,
    classifier,
    epsilon_or,
    guarantee,
    number,
    score,
    score_of_same_test,
    seeds,
    select,
)


def front(result: Result) -> str:
    """Accuracy and time of the default generator beside FETA-Pro and real records."""
    rows = select(
        result["rows"],
        classifier="cnn",
        method="one-shot mixture",
        epsilon=(10.0, 1.0),
        dataset=("MNIST", "FashionMNIST", "CIFAR10"),
    )
    table = Table(rows)
    table.text("data set", "dataset")
    table.number("ε", "epsilon", form="g")
    table.column("accuracy", score)
    table.number("seconds", "train_seconds", form="d")
    table.column("FETA-Pro", _printed_by_feta_pro)
    table.column("real records", _of_real_records)
    note = "five seeds (CIFAR10: three), on one core while another was busy"
    return with_origin(table, result, rows, note=note)


def _printed_by_feta_pro(row: Row) -> str:
    """Return the accuracy that FETA-Pro prints: best of three networks."""
    printed = {"dataset": row["dataset"], "classifier": "best"}
    return score_of_same_test(
        printed, "imagebench", method="FETA-Pro, as printed", epsilon=row["epsilon"]
    )


def _of_real_records(row: Row) -> str:
    """Return the accuracy of the same classifier after training on real records."""
    return score_of_same_test(row, "generation", "imagebench", method="real records")


def front_printed(result: Result) -> str:
    """Accuracies of the default generator above Rakotomamonjy2021, Table 2."""
    rows = select(
        result["rows"],
        classifier=("logreg", "mlp"),
        method="one-shot mixture",
        epsilon=(10.0, 1.0),
        dataset=tuple(PRINTED),
    )
    table = Pivot("generator", "guarantee")
    for row in rows:
        column = f"{row['dataset']}, {classifier(row)}"
        table.add(["dpswd", epsilon_or(row, "none")], column=column, cell=score(row))
    for dataset, methods in PRINTED.items():
        for method, accuracies in methods.items():
            for name in ("logreg", "mlp"):
                column = f"{dataset}, {CLASSIFIERS[name]}"
                line = [f"{method}, printed", _printed_guarantee(method)]
                table.add(line, column=column, cell=f"{accuracies[name]}")
    return with_origin(table, result, rows, note="five seeds")


def _printed_guarantee(method: str) -> str:
    """Return the guarantee that Table 2 claims for a generator."""
    if method == "SWD":
        return "none"
    return claim({"epsilon": 10.0, "sound": None})


def generation_compared(result: Result) -> str:
    """Accuracies of the default generator at every budget, beside real records."""
    rows = select(
        result["rows"],
        classifier=("logreg", "cnn"),
        method=("real records", "one-shot mixture"),
    )
    table = Pivot("data set", "classifier")
    for row in rows:
        table.add(
            [row["dataset"], classifier(row)],
            column=epsilon_or(row, "real records"),
            cell=score(row),
        )
    return with_origin(table, result, rows, note="five seeds (CIFAR10: three)")


def generation_baselines(result: Result) -> str:
    """Accuracies and times of the default generator and of baselines."""
    rows = select(
        result["rows"],
        classifier="cnn",
        dataset=("MNIST", "FashionMNIST"),
        method=("one-shot mixture", "class-wise Gaussian", "DP-MERF"),
    )
    table = Pivot("data set", "method", last=["seconds"])
    for row in rows:
        seconds = number(row["train_seconds"], ",d")
        line = [row["dataset"], row["method"]]
        table.add(line, column=claim(row), cell=score(row), last=[seconds])
    note = "five seeds (DP-MERF: three), while other programs ran"
    return with_origin(table, result, rows, note=note)


def slices(result: Result) -> str:
    """Accuracies of networks trained by DP-SWD on slices.

    The start of the networks, and the moments, are beside them.
    """
    table = Pivot("data set", "classifier", last=["moments, ε = 10 / 1"])
    rows = select(result["rows"], method=("DP-SWD, slices", "start of the slices, no training"))
    for row in rows:
        column = epsilon_or(row, "")
        if row["method"] != "DP-SWD, slices":
            column = f"start, {column}"
        table.add(
            [row["dataset"], classifier(row)],
            column=column,
            cell=score(row),
            last=[_of_method(row, "networks", "moment matching", (10.0, 1.0))],
        )
    seconds = max(row["cpu_seconds"] for row in rows)
    note = f"five seeds, starts one; at most {seconds:d} s of CPU time per network"
    return with_origin(table, result, rows, note=note)


def own_network(result: Result) -> str:
    """Accuracies of an own convolutional network that draws pixels."""
    table = Pivot("data set", last=["CPU, s"])
    for row in result["rows"]:
        seconds = f"{row['cpu_seconds']:d}"
        table.add([row["dataset"]], column=classifier(row), cell=score(row), last=[seconds])
    note = "ε = 10, MNIST with three seeds"
    return with_origin(table, result, result["rows"], note=note)


def paper_mechanism(result: Result) -> str:
    """Accuracies of a network trained by the paper's mechanism, with what it claims."""
    table = Pivot("data set", "steps", "ε", "μ")
    for row in result["rows"]:
        line = [row["dataset"], f"{row['steps']:,d}", f"{row['epsilon']:.3g}", f"{row['mu']:.3g}"]
        table.add(line, column=classifier(row), cell=score(row))
    return with_origin(table, result, result["rows"], note="one seed")


def shapes(result: Result) -> str:
    """Accuracies of the one-shot generator in shapes and in pixels.

    The AUC of a CNN that tells generated images from real ones is beside them.
    """
    table = Pivot("data set", "rows", "ε", last=["AUC"])
    for row in result["rows"]:
        rows = "shapes"
        if row["method"].endswith("pixels"):
            rows = "pixels"
        table.add(
            [row["dataset"], rows, f"{row['epsilon']:g}"],
            column=classifier(row),
            cell=score(row),
            last=[number(row.get("auc"), ".3f")],
        )
    return with_origin(table, result, result["rows"], note="three seeds")


def networks(result: Result) -> str:
    """Accuracies of networks that match moments, beside print and mixture."""
    rows = select(
        result["rows"],
        method=("moment matching", "DP-SWD, printed, ε claimed", "SWD, printed"),
    )
    table = Pivot("data set", "classifier", last=["mixture, ε = 10 / 1 / 0.2"])
    for row in rows:
        column = row["method"]
        if row["sound"]:
            column = epsilon_or(row, "")
        table.add(
            [row["dataset"], classifier(row)],
            column=column,
            cell=score(row),
            last=[_of_method(row, "generation", "one-shot mixture", (10.0, 1.0, 0.2))],
        )
    seconds = rows[0]["cpu_seconds"]
    note = f"{seconds:d} s of CPU time for MNIST; three seeds, one where no deviation is given"
    return with_origin(table, result, rows, note=note, command="networks")


def _of_method(row: Row, result: str, method: str, epsilons: tuple[float, ...]) -> str:
    """Return the accuracies of a method of another result at several budgets."""
    means = []
    for epsilon in epsilons:
        same = select(
            read_result(result)["rows"],
            dataset=row["dataset"],
            classifier=row["classifier"],
            method=method,
            epsilon=epsilon,
        )
        means.append(f"{same[0]['mean']:.1f}")
    return " / ".join(means)


def networks_start(result: Result) -> str:
    """Accuracies of networks that start elsewhere, and of the start without training."""
    rows = select(
        result["rows"],
        method=(
            "normal law of the moments, no training",
            "moment matching, from random weights",
            "moment matching, two feature maps",
        ),
    )
    table = Pivot("data set", "network", "steps")
    for row in rows:
        line = [row["dataset"], row["method"], f"{row['steps']:,}"]
        table.add(line, column=classifier(row), cell=score(row))
    return with_origin(table, result, rows, note="ε = 10, one seed", command="networks")


def networks_faces(result: Result) -> str:
    """Fidelity of a network trained to match moments of faces."""
    rows = result["faces"]
    table = Table(rows)
    table.column("guarantee", guarantee)
    table.number("Fréchet distance", "frechet", form=".3g")
    table.number("precision", "precision", form=".2f")
    table.number("recall", "recall", form=".2f")
    table.number("CPU, s", "cpu_seconds", form=".0f")
    return with_origin(table, result, rows, note="one seed", command="networks")


def imagebench(result: Result) -> str:
    """Accuracies in DPImageBench's protocol beside those that FETA-Pro prints."""
    rows = select(
        result["rows"],
        classifier=("best", "mean"),
        method=("one-shot mixture", "FETA-Pro, as printed"),
    )
    table = Pivot("data set", "ε", last=["real records, best"])
    for row in rows:
        author = "FETA-Pro"
        if row["sound"]:
            author = "ours"
        table.add(
            [row["dataset"], f"{row['epsilon']:g}"],
            column=f"{author}, {row['classifier']}",
            cell=score(row),
            last=[_of_real_records(row)],
        )
    return with_origin(table, result, rows)


def imagebench_fidelity(result: Result) -> str:
    """Fidelity of generated images at epsilon = 10, and of real ones."""
    rows = select(result["fidelity"], epsilon=(None, 10.0))
    table = Table(rows)
    table.text("data set", "dataset")
    table.column("images", _images)
    table.number("Fréchet distance", "frechet", form=".3g")
    table.number("precision", "precision", form=".2f")
    table.number("recall", "recall", form=".2f")
    return with_origin(table, result, rows)


def _images(row: Row) -> str:
    return epsilon_or(row, "real records")


def imbalance(result: Result) -> str:
    """Balanced accuracies where one of two classes is rare."""
    rows = result["rows"]
    table = Pivot("data set", "classifier")
    for row in rows:
        column = row["method"]
        if row["epsilon"] is not None:
            column = f"{column}, {epsilon_or(row, '')}"
        table.add([row["dataset"], classifier(row)], column=column, cell=score(row))
    return with_origin(table, result, rows, note="balanced accuracy, five seeds")


def simulated_choice(result: Result) -> str:
    """Rule for rare classes by a simulation of the release."""
    rows = result["rows"]
    table = Table(rows)
    table.text("data set", "dataset")
    table.number("ε", "epsilon", form="g")
    for name in ("as released", "by the rule", "chosen"):
        table.number(name, name, form=".1f")
    table.number("simulated, as released", "as released, simulated", form=".1f")
    table.number("simulated, by the rule", "by the rule, simulated", form=".1f")
    table.column("rule chosen", lambda row: f"{row['n_rule']} of {row['seeds']}")
    note = "balanced accuracy of logistic regression, three seeds"
    return with_origin(table, result, rows, note=note)


def generation_ablation(result: Result) -> str:
    """Accuracy and Fréchet distance after every change of the default generator."""
    rows = result["rows"]
    table = Pivot("changed")
    for row in rows:
        table.add(
            [row["change"]],
            column=row["dataset"],
            cell=f"{row['mean']:.1f} ({row['frechet']:.4f})",
        )
    return with_origin(table, result, rows, note="three seeds")


def spread(result: Result) -> str:
    """Accuracy and Fréchet distance of draws nearer to the means of cells."""
    rows = select(result["rows"], classifier="cnn")
    table = Pivot("data set")
    for row in rows:
        table.add(
            [row["dataset"]],
            column=f"spread {row['spread']:g}",
            cell=f"{score(row)} ({row['frechet']:.3f})",
        )
    note = f"20,000 records, {seeds(rows)}, CNN; Fréchet distance in brackets"
    return with_origin(table, result, rows, note=note)


def units(result: Result) -> str:
    """Accuracies where a person with three records is protected."""
    rows = result["rows"]
    table = Pivot("setting", "protected", "ε")
    for row in rows:
        table.add(
            [row["setting"], row["unit"], f"{row['epsilon']:.3g}"],
            column=classifier(row),
            cell=score(row),
        )
    return with_origin(
        table, result, rows, note="MNIST, 6,000 images of 2,000 persons, three seeds"
    )


def table2(result: Result) -> str:
    """Rakotomamonjy2021, Table 2, in one protocol."""
    rows = select(result["rows"], classifier="cnn")
    table = Pivot("data set", "method")
    for row in rows:
        table.add([row["dataset"], row["method"]], column=claim(row), cell=score(row))
    return with_origin(table, result, rows, note=seeds(rows))


def table2_published(result: Result) -> str:
    """Rakotomamonjy2021, Table 2: the published algorithm beside the print."""
    rows = result["rows"]
    table = Pivot("data set", "method", "guarantee")
    for row in rows:
        line = [row["dataset"], row["method"], guarantee(row)]
        cell = f"{row['mean']:.1f} (printed {row['printed']:d})"
        table.add(line, column=classifier(row), cell=cell)
    return with_origin(table, result, rows, note=seeds(rows), command="table2_published")


def table2_gap(result: Result) -> str:
    """Rakotomamonjy2021, Table 2: what the published algorithm depends on."""
    rows = result["rows"]
    table = Pivot("method", "grouping", "learning rate", "steps")
    for row in rows:
        line = [row["method"], row["grouping"], f"{row['lr']:g}", f"{row['steps']:,}"]
        table.add(line, column=classifier(row), cell=score(row))
    return with_origin(table, result, rows, note="MNIST, three seeds")


def table2_gans(result: Result) -> str:
    """Rakotomamonjy2021, Table 2: DP-CGAN beside the print."""
    rows = result["rows"]
    table = Pivot("data set", "steps", "guarantee")
    for row in rows:
        guarantee = f"ε = {row['epsilon']:.3g}, μ = {row['mu']:.3g}, on conditions"
        cell = f"{score(row)} (printed {row['printed']})"
        line = [row["dataset"], f"{row['steps']:,}", guarantee]
        table.add(line, column=classifier(row), cell=cell)
    return with_origin(table, result, rows, note=seeds(rows))


def gs_wgan_cost(result: Result) -> str:
    """Rakotomamonjy2021, Table 2: what a training of GS-WGAN costs."""
    rows = result["rows"]
    table = Table(rows)
    table.number("parameters of the generator", "generator_parameters", form=",")
    table.number("discriminators", "discriminators", form=",")
    table.number("iterations", "iterations", form=",")
    table.number("seconds of an iteration", "cpu_seconds_per_iteration", form=".1f")
    table.number("hours of a core", "cpu_hours", form=",")
    return with_origin(table, result, rows)


def fig6(result: Result) -> str:
    """Rakotomamonjy2021, Figure 6: fidelity of faces by the default generator."""
    rows = result["rows"]
    table = Table(rows)
    table.text("images", "method")
    table.number("N", "sample_size", form=",")
    table.column("guarantee", guarantee)
    table.number("Fréchet distance", "frechet", form=".4f")
    table.number("precision", "precision", form=".2f")
    table.number("recall", "recall", form=".2f")
    table.number("training, s", "train_seconds", form="d")
    note = f"one seed, {result['machine']['cores']} CPU cores that were busy with other work"
    return with_origin(table, result, rows, note=note)
