"""The ASE calculator around a potential."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import BaseCalculator, PropertyNotImplementedError, all_changes

from mlpot.checkpoint import DTYPES, load
from mlpot.compose import Ensemble, predict_members
from mlpot.convert import ase as convert
from mlpot.errors import PhysicsWarning, UserError, unknown
from mlpot.graph import AtomsGraph
from mlpot.neighbors import SkinList
from mlpot.potential import Potential, predict
from mlpot.structure import SYMBOLS, Structure


class UnavailableProperty(UserError, PropertyNotImplementedError):
    """A property was asked for that the structure or the model does not have."""


class Calculator(BaseCalculator):
    """Energies, forces and stress of a potential for ASE, in ASE's units, order and signs.

    | result      | shape  | unit  |                                                                     |
    |-------------|--------|-------|---------------------------------------------------------------------|
    | energy      | float  | eV    |                                                                     |
    | free_energy | float  | eV    | the same number; ASE's optimisers ask for it                        |
    | energies    | (n,)   | eV    | of each atom                                                        |
    | forces      | (n, 3) | eV/Å  |                                                                     |
    | stress      | (6,)   | eV/Å³ | xx, yy, zz, yz, xz, xy; negative under compression; 3-D periodic only |

    A committee (`mlpot.compose.Ensemble`) also leaves energy_members (M,), forces_members (M, n, 3), stress_members
    (M, 6), energy_std and forces_std (n, 3), population standard deviations, in ``results``.

    Only what is asked for is computed. Results are kept until positions, numbers, cell, pbc or an input that the model
    declares (``atoms.info["charge"]``, ``atoms.info["spin"]``) change. `skin` (Å) is how far beyond the cutoff
    neighbours are kept, so that small moves need no new search; results do not depend on it.

    potential: a Potential, or the path of a .mlpot file. It is copied; the one given is not touched.
    dtype: "float32" or "float64"; by default that of the potential.
    Raises UserError for elements the model was not trained on, a device that is not there, memory that runs out and
    results that are not finite.
    """

    implemented_properties: ClassVar[list[str]] = ["energy", "free_energy", "energies", "forces", "stress"]

    def __init__(
        self,
        potential: Potential | str | os.PathLike[str],
        device: str | torch.device = "cpu",
        dtype: str | None = None,
        skin: float = 1.0,
    ) -> None:
        if dtype is not None and dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UserError('device="cuda" was asked for, but torch finds no CUDA device here. Use device="cpu".')
        chosen = copy.deepcopy(potential) if isinstance(potential, Potential) else load(potential)
        if dtype is not None:
            chosen = chosen.to(DTYPES[dtype])
        self.potential = chosen.to(self.device).eval().requires_grad_(False)
        self.skin = float(skin)
        self.parameters: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self.n_evaluations = 0
        self._neighbors = SkinList(self.potential.cutoff, self.skin)
        self._graph: AtomsGraph | None = None
        self._edges: Any = None
        self._seen: Structure | None = None
        self._warned: set[float] = set()

    @property
    def name(self) -> str:
        """What ASE calls the calculator."""
        return "mlpot"

    @property
    def atoms(self) -> Atoms | None:
        """The structure that the present results belong to."""
        return None if self._seen is None else convert.atoms(self._seen)

    def _inputs(self, atoms: Atoms) -> tuple[float | None, float | None]:
        """Charge and spin, where the model takes them; a warning where it ignores a charge."""
        declared = self.potential.structure_inputs
        charge, spin = atoms.info.get("charge"), atoms.info.get("spin")
        if charge and "charge" not in declared and float(charge) not in self._warned:
            self._warned.add(float(charge))
            warnings.warn(
                f'atoms.info["charge"] is {charge}, but the model does not take a charge: its answer is for the charge '
                f"states it was trained on.",
                PhysicsWarning,
                stacklevel=4,
            )
        return (
            float(charge) if charge is not None and "charge" in declared else None,
            float(spin) if spin is not None and "spin" in declared else None,
        )

    def _same(self, atoms: Atoms) -> bool:
        seen = self._seen
        return (
            seen is not None
            and np.array_equal(seen.positions, atoms.positions)
            and np.array_equal(seen.numbers, atoms.numbers)
            and np.array_equal(seen.cell, atoms.cell.array)
            and np.array_equal(seen.pbc, atoms.pbc)
            and (seen.charge, seen.spin) == self._inputs(atoms)
        )

    def check_state(self, atoms: Atoms, tol: float = 0.0) -> list[str]:
        """The names of what changed since the last evaluation, as ASE asks for them; empty where nothing did."""
        return [] if self._same(atoms) else list(all_changes)

    def calculation_required(self, atoms: Atoms, properties: Sequence[str]) -> bool:
        """Whether any of the properties is not there yet for these atoms."""
        return not self._same(atoms) or any(name not in self.results for name in properties)

    def reset(self) -> None:
        """Forget the results."""
        self._seen, self.results = None, {}

    def get_property(self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True) -> Any:
        """One property of the table above; a copy, so that callers may change it."""
        if name not in self.implemented_properties:
            raise UnavailableProperty(f'"{name}" is not among the properties of this calculator: {self.implemented_properties}.')
        if atoms is not None and not self._same(atoms):
            if not allow_calculation:
                return None
            self.results = {}
        if name not in self.results:
            if not allow_calculation or atoms is None:
                return None
            self.calculate(atoms, [name])
        value = self.results[name]
        return value.copy() if isinstance(value, np.ndarray) else value

    def calculate(
        self, atoms: Atoms, properties: Sequence[str] = ("energy",), system_changes: Sequence[str] = all_changes
    ) -> None:
        """Compute the properties, and what comes with them for free."""
        forces, stress = "forces" in properties, "stress" in properties
        if stress and not atoms.pbc.all():
            raise UnavailableProperty(
                f"stress needs a cell that is periodic in three directions; pbc is {atoms.pbc.tolist()}. "
                f"A slab or molecule has no stress per volume."
            )
        graph = self._graph_of(atoms)
        try:
            results = self._evaluate(graph, forces, stress)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            self.reset()
            if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
                raise
            raise UserError(self._out_of_memory(graph)) from None
        self._refuse_nonsense(results, atoms)
        kept = self.results if self._same(atoms) else {}
        self.results = {**kept, **results}
        self._seen = self._structure
        self.n_evaluations += 1

    def _graph_of(self, atoms: Atoms) -> AtomsGraph:
        """The graph of the atoms; while the edges stay the same, only positions and cell are renewed."""
        charge, spin = self._inputs(atoms)
        # Copies: the results belong to this geometry, whatever the caller does to the atoms next.
        structure = Structure(
            atoms.numbers.astype(np.int64),
            atoms.positions.astype(np.float64),
            atoms.cell.array.astype(np.float64),
            atoms.pbc.copy(),
            charge,
            spin,
        )
        structure.check("atoms")
        self._structure = structure
        edge_index, edge_shift = self._neighbors(structure)
        graph, edges = self._graph, self._edges
        unchanged = (
            graph is not None
            and graph.n_atoms == len(structure)
            and np.array_equal(edges[0], edge_index)
            and np.array_equal(edges[1], edge_shift)
            and np.array_equal(edges[2].numbers, structure.numbers)
            and np.array_equal(edges[2].pbc, structure.pbc)
            and (edges[2].charge, edges[2].spin) == (charge, spin)
        )
        if unchanged and graph is not None:
            positions = torch.from_numpy(structure.positions).to(self.device)
            cell = torch.from_numpy(structure.cell)[None].to(self.device)
            graph = graph.moved(positions, cell)
        else:
            graph = AtomsGraph.from_edges(structure, edge_index, edge_shift, self.potential.cutoff).to(self.device)
            self.potential.check(graph)
        self._graph, self._edges = graph, (edge_index, edge_shift, structure)
        return graph

    def _evaluate(self, graph: AtomsGraph, forces: bool, stress: bool) -> dict[str, Any]:
        if isinstance(self.potential, Ensemble):
            return self._committee(self.potential, graph, forces, stress)
        out = predict(self.potential, graph, forces=forces, stress=stress)
        energies = out.atom_energies.cpu().numpy()
        energy = float(out.energy[0])
        results: dict[str, Any] = {"energy": energy, "free_energy": energy, "energies": energies}
        if out.forces is not None:
            results["forces"] = out.forces.cpu().numpy()
        if out.stress is not None:
            results["stress"] = convert.to_voigt(out.stress[0].cpu().numpy())
        return results

    def _committee(self, model: Ensemble, graph: AtomsGraph, forces: bool, stress: bool) -> dict[str, Any]:
        members = predict_members(model, graph, forces=forces, stress=stress)
        energies = members.atom_energies.mean(0).cpu().numpy()
        each = members.energy[:, 0].cpu().numpy()
        results: dict[str, Any] = {
            "energy": float(each.mean()),
            "free_energy": float(each.mean()),
            "energies": energies,
            "energy_members": each,
            "energy_std": float(each.std()),
        }
        if members.forces is not None:
            stack = members.forces.cpu().numpy()
            results |= {"forces": stack.mean(0), "forces_members": stack, "forces_std": stack.std(0)}
        if members.stress is not None:
            voigt = np.array([convert.to_voigt(one) for one in members.stress[:, 0].cpu().numpy()])
            results |= {"stress": voigt.mean(0), "stress_members": voigt}
        return results

    def _refuse_nonsense(self, results: Mapping[str, Any], atoms: Atoms) -> None:
        if math.isfinite(results["energy"]) and np.isfinite(results.get("forces", 0.0)).all():
            return
        self.reset()
        energies = np.isfinite(results["energies"])
        bad = ~energies if "forces" not in results else ~(energies & np.isfinite(results["forces"]).all(axis=1))
        first = int(np.flatnonzero(bad)[0]) if bad.any() else 0
        near = ""
        if len(atoms) > 1:
            distances = atoms.get_distances(first, list(range(len(atoms))), mic=bool(atoms.pbc.any()))
            distances[first] = np.inf
            other = int(distances.argmin())
            near = f" Its nearest neighbour, atom {other} ({atoms.symbols[other]}), is {distances[other]:.3f} Å away."
        raise UserError(f"the energy or a force is not finite; first at atom {first} ({atoms.symbols[first]}).{near}")

    def _out_of_memory(self, graph: AtomsGraph) -> str:
        return (
            f"out of memory on {self.device}: {graph.n_atoms} atoms, {graph.n_edges} edges, {self.potential.dtype}. "
            f"Use dtype='float32', a smaller structure, or a model with a shorter cutoff or fewer channels."
        )

    def __getstate__(self) -> dict[str, Any]:
        # What can be found again is left out: pickles stay small, and copies share nothing.
        return {**self.__dict__, "_graph": None, "_edges": None, "_neighbors": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._neighbors = SkinList(self.potential.cutoff, self.skin)

    def __repr__(self) -> str:
        known = self.potential.elements
        elements = "any element" if known is None else " ".join(SYMBOLS[z] for z in known)
        return f"mlpot.Calculator({type(self.potential).__name__}, {elements}, {self.potential.dtype}, {self.device})"

