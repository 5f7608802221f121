"""Public maps from records to rows, and jitter of generated images."""
