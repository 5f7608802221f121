"""Modules of the tables and figures. Used from a checkout."""
