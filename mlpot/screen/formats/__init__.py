"""Formats that molecules are read from, one a file.

A module here has

    FORMAT, SUFFIXES                          its name and the endings of its files; all may have .gz after them
    lines(path, columns) -> Iterator[Line]    every entry of the file as text, one at a time
    molecule(text, standardise, coordinates) -> Molecule    what an entry says; Refused with a reason

and is found by its place in this folder.
"""
