"""Accuracy and fidelity of synthetic records, on records that the user may look at."""
