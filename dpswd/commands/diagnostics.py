"""``dpswd wdp`` and ``dpswd tangent``: diagnostics that are not part of the guarantee."""

import json
import math
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from dpswd.commands import Command
from dpswd.diagnostics.appendix import NOTE, write_diagnostics
from dpswd.diagnostics.tangent import gibbs_distribution, removal_changes, tangent_norms
from dpswd.diagnostics.wasserstein import WassersteinAccountant, gaussian_wdp, laplace_wdp
from dpswd.errors import InputError


def _wdp_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--mechanism",
        choices=["training", "gaussian", "laplace"],
        default="training",
        help="steps of subsampled Gaussian training (Corollary 1), or one release (Propositions 8 and 7)",
    )
    parser.add_argument("--order", type=float, default=16.0, help="order mu of the distance, at least 1")
    parser.add_argument("--sigma", type=float, required=True, help="noise in units of the output")
    parser.add_argument(
        "--distance",
        type=float,
        nargs="+",
        default=[1.0],
        help="distances of neighbouring gradients, or the sensitivity of the release",
    )
    parser.add_argument("--sampling-rate", type=float, default=1.0, help="rate q in [0, 1] (training)")
    parser.add_argument("--n-steps", type=int, default=1, help="number of steps (training)")
    parser.add_argument("--beta", type=float, default=1.0, help="the free constant of Theorem 1 (training)")
    parser.add_argument("--delta", type=float, default=1e-5, help="delta of Corollary 1 (training)")
    parser.add_argument("--run-dir", type=Path, help="also write RUN_DIR/diagnostics.json for the report")


def _wdp(args: Namespace) -> dict[str, Any]:
    if args.mechanism == "training":
        accountant = WassersteinAccountant(
            order=args.order, beta=args.beta, sigma=args.sigma, sampling_rate=args.sampling_rate
        )
        accountant.step(args.distance, n_steps=args.n_steps)
        result = accountant.to_dict(args.delta)
    else:
        if len(args.distance) != 1:
            raise InputError(f"Expected one --distance, got {len(args.distance)}; give the sensitivity of the release.")
        formula = gaussian_wdp if args.mechanism == "gaussian" else laplace_wdp
        value = formula(args.order, args.sigma, args.distance[0])
        result = {"wdp_diagnostic": value, "order": args.order, "sigma": args.sigma, "is_guarantee": False}
        result["true_distance"] = args.distance[0]  # of two laws that differ by a shift, at every order
    result |= {"mechanism": args.mechanism, "distances": args.distance, "note": NOTE}
    return _finish(args, "wdp", result)


def _show_wdp(result: dict[str, Any]) -> None:
    print(f"WDP diagnostic of order {result['order']:g}: {result['wdp_diagnostic']:.6g} (units of the output)")
    if "true_distance" in result:
        print(f"The distance of Definition 3 is {result['true_distance']:g} for every noise.")
    print(result["note"])


def _tangent_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--risk",
        type=Path,
        required=True,
        help="matrix of bounded risks (hypotheses x records), .npy",
    )
    parser.add_argument("--beta", type=float, required=True, help="inverse temperature of the Gibbs distribution")
    parser.add_argument("--run-dir", type=Path, help="also write RUN_DIR/diagnostics.json for the report")


def _tangent(args: Namespace) -> dict[str, Any]:
    risk = _read_matrix(args.risk)
    with np.errstate(over="ignore", invalid="ignore"):  # _finish refuses an overflow
        q = gibbs_distribution(risk, args.beta)
        result = tangent_norms(risk, args.beta, q=q).to_dict()
        result |= {"hypotheses": risk.shape[0], "records": risk.shape[1]}
        result["effective_hypotheses"] = math.exp(float(special.entr(q).sum()))
        if risk.shape[1] > 1:
            change = removal_changes(risk, args.beta)
            result["largest_change_on_removal"] = {
                "log_ratio": float(change.log_ratio.max()),
                "log_ratio_bound": 2 * result["tangent_dp"]["total_variation"]["exact"] * change.step,
                "total_variation": float(change.total_variation.max()),
            }
    return _finish(args, "tangent", result | {"note": NOTE})


def _read_matrix(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except Exception as error:  # NumPy raises many exception types on damaged files
        raise InputError(f"Expected --risk to be a matrix (.npy), got {path}: {error}.") from None


def _show_tangent(result: dict[str, Any]) -> None:
    print(f"beta {result['beta']:g}, {result['hypotheses']} hypotheses, {result['records']} records")
    titles = {"tangent_dp": "Tangent DP (Definition 2)", "differentiability": "Differentiability (Definition 1)"}
    for name, title in titles.items():
        for space, norms in result[name].items():
            values = "   ".join(f"{key.replace('_', ' ')} {value:.6g}" for key, value in norms.items())
            print(f"{title}, {space.replace('_', ' ')}: {values}")
    if "largest_change_on_removal" in result:
        change = result["largest_change_on_removal"]
        print(
            f"Removal of one record changes ln q by up to {change['log_ratio']:.6g} (bound "
            f"{change['log_ratio_bound']:.6g}) and q by up to {change['total_variation']:.6g} in total variation."
        )
    print(result["note"])


def _finish(args: Namespace, name: str, result: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(result, allow_nan=False)
    except ValueError:
        raise InputError(f"Expected finite {name} diagnostics, got an overflow; use less extreme values.") from None
    if args.run_dir is not None:
        entry = {key: value for key, value in result.items() if key != "note"}
        result["written"] = str(write_diagnostics(args.run_dir, name, entry))
    return result


COMMANDS = {
    "wdp": Command("Wasserstein DP diagnostic of a release or a training run", _wdp_arguments, _wdp, _show_wdp),
    "tangent": Command("tangent DP diagnostic of a Gibbs head", _tangent_arguments, _tangent, _show_tangent),
}
