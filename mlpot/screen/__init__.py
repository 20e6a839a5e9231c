"""Screening: long lists of molecules in, one row for each out, whatever happens on the way."""
