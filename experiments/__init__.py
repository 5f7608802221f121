"""Data modules, downstream evaluation, and one module per table or figure. Used from a checkout."""
