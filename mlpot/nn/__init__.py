"""Parts that models are built from."""
