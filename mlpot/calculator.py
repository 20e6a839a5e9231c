"""The ASE calculator around a potential."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import PropertyNotImplementedError, all_changes

from mlpot.checkpoint import DTYPES
from mlpot.compose import Ensemble, predict_members
from mlpot.convert import ase as convert
from mlpot.device import device_of
from mlpot.errors import PhysicsWarning, UserError, unknown
from mlpot.graph import AtomsGraph
from mlpot.model import Model
from mlpot.neighbors import SkinList, edge_vectors
from mlpot.potential import Potential, as_potential
from mlpot.pretrained import load
from mlpot.recording import MOST_EDGES, Player
from mlpot.structure import SYMBOLS, Structure


class UnavailablePropertyError(UserError, PropertyNotImplementedError):
    """A property was asked for that the structure or the model does not have."""


class Calculator(AseCalculator):
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
    neighbours are kept, so that small moves need no new search; results do not depend on it, but for rounding. For a
    few atoms whose neighbours stay the same, the tensor operations are recorded and played again (`mlpot.recording`),
    which takes half the time.

    potential: a Potential, or the path of a .mlpot file. It is copied; the one given is not touched.
    dtype: "float32" or "float64"; by default that of the potential.
    Raises UserError for elements the model was not trained on, a device that is not there, memory that runs out and
    results that are not finite.
    """

    implemented_properties = ["energy", "free_energy", "energies", "forces", "stress"]  # noqa: RUF012 (ASE's type)

    def __init__(
        self,
        potential: Potential | str | os.PathLike[str],
        device: str | torch.device = "cpu",
        dtype: str | None = None,
        skin: float = 1.0,
    ) -> None:
        if dtype is not None and dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
        super().__init__()
        self.device = device_of(device)
        read = copy.deepcopy(potential) if isinstance(potential, Model) else load(potential)
        chosen = as_potential(read, "" if isinstance(potential, Model) else str(potential))
        if dtype is not None:
            chosen = chosen.to(DTYPES[dtype])
        self.potential = chosen.to(self.device).eval().requires_grad_(False)
        self.skin = float(skin)
        self.results: dict[str, Any] = {}
        self.n_evaluations = 0
        self._neighbors = SkinList(self.potential.cutoff, self.skin)
        self._player = Player(self.potential)
        self._graph: AtomsGraph | None = None
        self._edges: tuple[Any, Any] | None = None  # those that the graph was made of
        self._graph_of_what: Structure | None = None
        self._seen: Structure | None = None  # what the results belong to
        self._warned: set[float] = set()

    def _get_name(self) -> str:
        return "mlpot"

    @property
    def atoms(self) -> Atoms | None:
        """The structure that the present results belong to."""
        return None if self._seen is None else convert.atoms(self._seen)

    @atoms.setter
    def atoms(self, value: Atoms | None) -> None:
        self._seen = None if value is None else convert.structure(value)

    def _inputs(self, atoms: Atoms) -> tuple[float | None, float | None]:
        """Charge and spin, where the model takes them; a warning where it ignores a charge."""
        declared, info = self.potential.structure_inputs, atoms.info
        if not declared and "charge" not in info:
            return None, None
        charge, spin = convert.number(info, "charge"), convert.number(info, "spin")
        if charge and "charge" not in declared and charge not in self._warned:
            self._warned.add(charge)
            warnings.warn(
                f'atoms.info["charge"] is {charge:g}, but the model does not take a charge: its answer is for the '
                f"charge states it was trained on.",
                PhysicsWarning,
                stacklevel=4,
            )
        return (
            charge if "charge" in declared else None,
            spin if "spin" in declared else None,
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
            known = ", ".join(self.implemented_properties)
            raise UnavailablePropertyError(f'"{name}" is not a property of this calculator. Known: {known}.')
        if atoms is not None and not self._same(atoms):
            self.reset()
        if name not in self.results:
            atoms = self.atoms if atoms is None else atoms
            if not allow_calculation or atoms is None:
                return None
            self.calculate(atoms, [name])
        value = self.results[name]
        return value.copy() if isinstance(value, np.ndarray) else value

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Compute the properties, and what comes with them for free: energies always, forces along with stress."""
        atoms = self.atoms if atoms is None else atoms
        if atoms is None:
            raise UserError("the calculator has no atoms yet; give them, or set atoms.calc and ask the atoms.")
        stress = "stress" in properties
        if stress and not atoms.pbc.all():
            raise UnavailablePropertyError(
                f"stress needs a cell that is periodic in three directions; pbc is {atoms.pbc.tolist()}. "
                f"A slab or molecule has no stress per volume."
            )
        kept = self.results if self._same(atoms) else {}
        self.reset()
        structure = self._structure_of(atoms)
        graph = self._renewed(structure)
        try:
            results = self._evaluate(graph, stress or "forces" in properties, stress)
        except (MemoryError, RuntimeError) as error:  # CUDA's and the CPU allocator's are RuntimeErrors
            if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
                raise
            raise UserError(self._out_of_memory(graph)) from None
        self.n_evaluations += 1
        self._refuse_nonsense(results, structure)
        self.results = {**results, **kept}  # what was told once stays as it was, to the last bit
        self._seen = structure

    def _structure_of(self, atoms: Atoms) -> Structure:
        """Copies, so that the results belong to this geometry whatever becomes of the atoms; checked if new.

        Arrays that are as they were in the last graph are taken from there, so that ``is`` tells what has changed.
        """
        before = self._graph_of_what
        numbers, cell, pbc = atoms.numbers, atoms.cell.array, atoms.pbc
        same = before is not None and np.array_equal(before.numbers, numbers) and np.array_equal(before.pbc, pbc)
        same_cell = same and before is not None and np.array_equal(before.cell, cell)
        structure = Structure(
            before.numbers if same and before is not None else numbers.astype(np.int64),
            atoms.positions.astype(np.float64),
            before.cell if same_cell and before is not None else cell.astype(np.float64),
            before.pbc if same and before is not None else pbc.copy(),
            *self._inputs(atoms),
        )
        if not same_cell or not np.isfinite(structure.positions).all():
            structure.check("atoms")
        return structure

    def _renewed(self, structure: Structure) -> AtomsGraph:
        """The graph of a structure; while the edges stay the same, only positions and cell are renewed."""
        edges = self._neighbors.few(structure, MOST_EDGES)
        graph, before = self._graph, self._graph_of_what
        if (
            graph is not None
            and before is not None
            and self._edges is not None
            and all(old is new or np.array_equal(old, new) for old, new in zip(self._edges, edges, strict=True))
            and before.numbers is structure.numbers
            and before.pbc is structure.pbc
            and (before.charge, before.spin) == (structure.charge, structure.spin)
        ):
            _ = graph.pairs  # worked out once for as long as the edges last
            # A copy for torch: what the model does to its input must not reach the results' geometry.
            positions = torch.from_numpy(structure.positions.copy()).to(self.device)
            cell = graph.cell
            if before.cell is not structure.cell:
                cell = torch.from_numpy(structure.cell.copy())[None].to(self.device)
            graph = graph.moved(positions, cell)
        else:
            graph = AtomsGraph.from_edges(structure, *edges, self.potential.cutoff).to(self.device)
        self._graph, self._edges, self._graph_of_what = graph, edges, structure
        return graph

    def _evaluate(self, graph: AtomsGraph, forces: bool, stress: bool) -> dict[str, Any]:
        if isinstance(self.potential, Ensemble):
            return self._committee(self.potential, graph, forces, stress)
        out = self._player(graph, forces=forces, stress=stress)
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

    def _refuse_nonsense(self, results: Mapping[str, Any], structure: Structure) -> None:
        if math.isfinite(results["energy"]) and np.isfinite(results.get("forces", 0.0)).all():
            return
        finite = np.isfinite(results["energies"])
        if "forces" in results:
            finite = finite & np.isfinite(results["forces"]).all(axis=1)
        atom = 0 if finite.all() else int(np.flatnonzero(~finite)[0])
        symbol, near = SYMBOLS[structure.numbers[atom]], ""
        (source, target), shift = self._neighbors(structure)
        if (mine := target == atom).any():
            distances = np.linalg.norm(edge_vectors(structure, np.stack([source, target]), shift)[mine], axis=1)
            other = int(source[mine][distances.argmin()])
            name = f"atom {other} ({SYMBOLS[structure.numbers[other]]})"
            near = f" Its nearest neighbour, {name}, is {distances.min():.3f} Å away."
        raise UserError(f"the energy or a force is not finite; first at atom {atom} ({symbol}).{near}")

    def _out_of_memory(self, graph: AtomsGraph) -> str:
        return (
            f"out of memory on {self.device}: {graph.n_atoms} atoms, {graph.n_edges} edges, {self.potential.dtype}. "
            f"Use dtype='float32', a smaller structure, or a model with a shorter cutoff or fewer channels."
        )

    def __getstate__(self) -> dict[str, Any]:
        # What can be found again is left out: pickles stay small, and copies share nothing.
        return {
            **self.__dict__,
            "_graph": None,
            "_edges": None,
            "_graph_of_what": None,
            "_neighbors": None,
            "_player": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._neighbors, self._player = SkinList(self.potential.cutoff, self.skin), Player(self.potential)

    def __repr__(self) -> str:
        known = self.potential.elements
        elements = "any element" if known is None else " ".join(SYMBOLS[z] for z in known)
        return f"mlpot.Calculator({type(self.potential).__name__}, {elements}, {self.potential.dtype}, {self.device})"
