"""Offline HTML reports: one file each, for training runs and for dynamics."""
