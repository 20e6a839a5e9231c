"""Dynamics and relaxation through the ASE calculator."""
