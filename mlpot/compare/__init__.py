"""Comparisons: many runs on the same data, and what they say when laid side by side."""
