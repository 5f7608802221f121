"""Wasserstein DP (Yang2024) and tangent DP (Ying2024): diagnostics, not guarantees."""
