import hashlib
import json

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import Ledger
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism

CONFIG = "model: {target_epsilon: 10.0}\n"
COUNTS = GaussianMechanism(sensitivity=2**0.5, sigma=50.0, name="class counts")
SKETCH = ProjectionMechanism(
    dim=16,
    n_projections=32,
    sigma=0.0175,
    batch_size=1000,
    statistic="quantiles",
    n_quantiles=10,
    kind="orthogonal",
    n_classes=10,
)
ROWS = ProjectionMechanism(dim=64, n_projections=64, sigma=1.5, batch_size=10)  # subsampled, random S
COARSE = ProjectionMechanism(dim=64, n_projections=64, sigma=0.25, batch_size=20, kind="orthogonal")  # high regret


def make_run(path, *groups, planned=None, accountant="pld", delta=1e-5, header=(), config=CONFIG, **claims):
    """Writes ledger.jsonl, privacy.json and config.yaml, which agree unless told otherwise."""
    groups = groups or ((COUNTS, 1000, 1), (SKETCH, 1000, 1))
    size = groups[0][1]
    path.mkdir()
    digest = hashlib.sha256(CONFIG.encode()).hexdigest()
    stated = {"version": "0.1.0", "config_sha256": digest, "sample_size": size, "accountant": accountant}
    stated |= {"target_epsilon": 10.0, "target_delta": delta} | dict(header)
    ledger, account = Ledger.create(path / "ledger.jsonl", stated), PrivacyAccountant(accountant)
    made = sum(count for *_, count in groups)
    for mechanism, n, count in groups:
        extra = (planned or made) - made if mechanism is groups[-1][0] else 0
        account.step(mechanism, sample_size=n, n_releases=count + extra)
        for _ in range(count):
            ledger.record(mechanism, n)
    mu, regret = account.get_mu_and_regret()
    facts = {
        "sound": account.sound,
        "private": all(mechanism.is_private for mechanism, _, _ in groups),
        "epsilon": account.get_epsilon(delta),
        "delta": delta,
        "mu": mu,
        "regret": regret,
        "accountant": accountant,
        "target_epsilon": 10.0,
        "target_delta": delta,
        "planned_releases": planned or made,
        "releases_made": made,
        "sample_size": size,
        "neighboring_relation": "replace-one",
        "assumptions": account.assumptions,
        "not_covered": ["Evaluation: in the words of the run."],
        "version": "0.1.0",
    }
    (path / "privacy.json").write_text(json.dumps(facts | claims))
    if config is not None:
        (path / "config.yaml").write_text(config)
    return path
