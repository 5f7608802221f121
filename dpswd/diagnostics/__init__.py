"""Wasserstein DP (Yang2024) and tangent DP (Ying2024) as diagnostics.

The diagnostics are not guarantees.
"""
