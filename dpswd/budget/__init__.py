"""Budget of a run: plan, run directory, ledger."""
