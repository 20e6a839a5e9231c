"""Training: configuration, loss, metrics and the loop."""
