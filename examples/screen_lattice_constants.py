"""An equation of state in one batch: energies, forces and stress of many cells at once, with argon's Lennard-Jones.

python examples/screen_lattice_constants.py
"""

from __future__ import annotations

import numpy as np
from ase.build import bulk

import mlpot
from mlpot import models
from mlpot.units import GPA

potential = models.build("lennard_jones", epsilon=0.0104, sigma=3.4, cutoff=8.0)
constants = np.linspace(4.8, 5.8, 11)
cells = [bulk("Ar", "fcc", a=a, cubic=True) for a in constants]
graph = mlpot.AtomsGraph.from_ase(cells, cutoff=potential.cutoff)
out = mlpot.predict(potential, graph, forces=False, stress=True)
for a, energy, stress in zip(constants, out.energy, out.stress, strict=True):
    pressure = -float(stress.diagonal().mean()) / GPA
    print(f"a = {a:.2f} Å   energy {float(energy) / 4:+.4f} eV/atom   pressure {pressure:+7.3f} GPa")
