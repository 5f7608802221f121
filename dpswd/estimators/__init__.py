"""Estimators in the manner of scikit-learn: PrivateGenerator and PrivateAdapter."""
