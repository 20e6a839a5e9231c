"""From frames to dynamics in Python: train on the ethanol that comes along, then run it through ASE.

python examples/train_and_use.py [SECONDS]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ase.units
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.md.verlet import VelocityVerlet

import mlpot
from mlpot.train.config import resolve
from mlpot.train.run import train

data = Path(__file__).parent.parent / "data"
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0

with tempfile.TemporaryDirectory() as folder:
    recipe = {
        "data": {"train": str(data / "ethanol_gfn2_500K_train.npz"), "test": str(data / "ethanol_gfn2_500K_test.npz")},
        "model": {"name": "schnet", "channels": 32},
        "training": {"budget": seconds, "learning_rate": 3e-3},
        "out": f"{folder}/run",
    }
    finished = train(resolve(recipe, "recipe"), print)

atoms = mlpot.AtomsGraph.from_structure(finished.prepared.test[0].structure, cutoff=5.0).to_ase()[0]
atoms.calc = mlpot.Calculator(finished.potential)
MaxwellBoltzmannDistribution(atoms, temperature_K=300)
dynamics = VelocityVerlet(atoms, timestep=0.5 * ase.units.fs)
for _ in range(5):
    dynamics.run(20)
    print(f"{atoms.get_total_energy():.4f} eV, {atoms.get_temperature():.0f} K")
