"""Make the embedded data set: ethanol at 500 K, molecular dynamics labelled with GFN2-xTB.

    OMP_NUM_THREADS=1 python recipes/make_ethanol_xtb.py data

Writes ethanol_gfn2_500K_train.npz and ethanol_gfn2_500K_test.npz, 1,000 frames each, in MD17's format: E (n, 1) in
kcal/mol, F (n, 9, 3) in kcal/mol/Å, R (n, 9, 3) in Å, z (9,); and prints what data/README.md states. The two come from
trajectories of their own (other seed, other start), so no test frame is a neighbour in time of a training frame.
Needs tblite (`pip install mlpot[labels]`) and takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

import ase.build
import ase.units
import numpy as np
from ase import Atoms
from ase.md.langevin import Langevin
from numpy.typing import NDArray
from tblite.ase import TBLite

from mlpot.units import KCAL_PER_MOL

KELVIN = 500.0
TIMESTEP_FS = 0.5
FRICTION_PER_FS = 0.01
EQUILIBRATION_FS = 2000
INTERVAL_FS = 25
SEEDS = {"train": 2024, "test": 4048}
THEORY = "GFN2-xTB (tblite)"
BONDS = {"C-C": [(0, 1)], "C-O": [(1, 2)], "O-H": [(2, 3)], "C-H": [(1, 4), (1, 5), (0, 6), (0, 7), (0, 8)]}


def calculator(accuracy: float) -> TBLite:
    """GFN2-xTB; its threshold of convergence is `accuracy` times xtb's default."""
    return TBLite(method="GFN2-xTB", accuracy=accuracy, verbosity=0)


def trajectory(n_frames: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Langevin dynamics at 500 K: positions (n_frames, 9, 3), Å, centre of mass at 0; temperatures (n_frames,), K.

    The centre of mass is left free, as the exact ensemble has it (9 atoms, 27 degrees of freedom), and is taken off
    the stored frames; the molecule turns freely. Frames are in the order of time.
    """
    random = np.random.default_rng(seed)
    atoms = ase.build.molecule("CH3CH2OH")
    atoms.calc = calculator(accuracy=1.0)
    widths = np.sqrt(KELVIN * ase.units.kB * atoms.get_masses())[:, None]
    atoms.set_momenta(widths * random.standard_normal((len(atoms), 3)))
    dynamics = Langevin(
        atoms,
        TIMESTEP_FS * ase.units.fs,
        temperature_K=KELVIN,
        friction=FRICTION_PER_FS / ase.units.fs,
        fixcm=False,
        rng=random,
    )
    dynamics.run(round(EQUILIBRATION_FS / TIMESTEP_FS))
    positions, temperatures = [], []
    for _ in range(n_frames):
        dynamics.run(round(INTERVAL_FS / TIMESTEP_FS))
        positions.append(atoms.get_positions() - atoms.get_center_of_mass())
        temperatures.append(atoms.get_temperature())
    return np.array(positions), np.array(temperatures)


def labelled(numbers: NDArray[np.int64], positions: NDArray[np.float64]) -> tuple[NDArray, NDArray]:
    """Energies (n, 1) in kcal/mol and forces (n, atoms, 3) in kcal/mol/Å of the positions as they are stored."""
    energies, forces = [], []
    for frame in positions:
        # A tight and fresh one: forces are the slope of the energy to 1e-6 eV/Å, and no label depends on another frame.
        atoms = Atoms(numbers, frame, calculator=calculator(accuracy=0.01))
        energies.append([atoms.get_potential_energy()])
        forces.append(atoms.get_forces())
    return np.array(energies) / KCAL_PER_MOL, np.array(forces) / KCAL_PER_MOL


def md5(arrays: dict[str, NDArray]) -> bytes:
    """The fingerprint that sGDML's tools keep in such files: md5 of the md5s of z, R, E and F."""
    parts = (hashlib.md5(np.ascontiguousarray(arrays[key])).digest() for key in ("z", "R", "E", "F"))
    return hashlib.md5(b"".join(parts)).hexdigest().encode()


def write(path: Path, positions: NDArray[np.float64]) -> dict[str, NDArray]:
    """Label the frames and write them to `path`, atomically."""
    numbers = ase.build.molecule("CH3CH2OH").numbers
    energies, forces = labelled(numbers, positions)
    arrays = {"E": energies, "F": forces, "R": positions, "z": numbers.astype(np.uint8)}
    words = {
        "name": np.array(path.stem),
        "theory": np.array(THEORY),
        "type": np.array(b"d"),
        "md5": np.array(md5(arrays)),
        "r_unit": np.array("Ang"),
        "e_unit": np.array("kcal/mol"),
    }
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays, **words)
    os.replace(temporary, path)
    return arrays


def describe(path: Path, arrays: dict[str, NDArray], temperatures: NDArray[np.float64]) -> None:
    """Print the facts that the README states."""
    energies = arrays["E"][:, 0] * KCAL_PER_MOL
    forces = arrays["F"] * KCAL_PER_MOL
    print(f"\n{path.name}  {path.stat().st_size} bytes\n  sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    error = temperatures.std() / np.sqrt(len(temperatures))
    print(f"  temperature {temperatures.mean():.1f} ± {error:.1f} K, of a frame {temperatures.std():.0f} K")
    print(f"  energy {energies.mean():.4f} ± {energies.std():.4f} eV, {energies.min():.4f} to {energies.max():.4f}")
    print(f"  force component rms {np.sqrt((forces**2).mean()):.4f} eV/Å, largest {np.abs(forces).max():.4f}")
    for name, pairs in BONDS.items():
        lengths = np.array([np.linalg.norm(arrays["R"][:, i] - arrays["R"][:, j], axis=1) for i, j in pairs])
        print(f"  {name} {lengths.mean():.4f} ± {lengths.std():.4f} Å, {lengths.min():.3f} to {lengths.max():.3f}")


def main() -> None:
    """Make the two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the two files go")
    parser.add_argument("--frames", type=int, default=1000, help="frames of each file")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(", ".join(f"{package} {version(package)}" for package in ("ase", "numpy", "tblite")))
    with ProcessPoolExecutor(len(SEEDS)) as pool:
        trajectories = pool.map(trajectory, [options.frames] * len(SEEDS), SEEDS.values())
        for part, (positions, temperatures) in zip(SEEDS, trajectories, strict=True):
            path = options.folder / f"ethanol_gfn2_500K_{part}.npz"
            describe(path, write(path, positions), temperatures)


if __name__ == "__main__":
    main()
