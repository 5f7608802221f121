"""Adaptation of a classifier to private records, from labelled public ones."""
