"""Networks and baselines of the papers, for reproductions from a checkout."""
