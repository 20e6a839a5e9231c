"""Offline HTML reports."""
