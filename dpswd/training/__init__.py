"""Training with a budget: budget, Lightning callback, checkpoints, LightningCLI."""
