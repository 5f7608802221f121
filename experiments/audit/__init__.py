"""Attacks, the zoo of broken mechanisms, and canaries."""
