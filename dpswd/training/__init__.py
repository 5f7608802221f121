"""Training with a budget: the budget itself, the Lightning callback, checkpoints, the LightningCLI."""
