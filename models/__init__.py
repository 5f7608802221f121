"""Networks and LightningModules. Used from a checkout; not part of the wheel."""
