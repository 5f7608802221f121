"""Tables and figures on generated data."""
