"""One file a data source; found by module name.

Each has

- FORMAT: its name, with the usual endings; SUFFIXES: those endings; KEYS: the labels a user may name in it;
- recognises(path) -> bool: whether the content is of the format;
- read(path, options) -> iterator of (Frame, notes): frames in eV, Å, eV/Å, eV/Å³, and what was assumed and converted;
- held(path) -> (values of a frame, values of its atoms): how many frames (or groups) carry each, by the file's names.
"""
