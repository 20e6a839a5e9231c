"""Labelled structures: sources, the store, splits and batches."""
