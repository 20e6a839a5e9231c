"""Looking into a prediction: what each atom contributes, by several methods, and whether the answer can be trusted."""
