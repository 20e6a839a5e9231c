"""mlpot predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlpot.commands.terminal import AsJson, Device, Dtype, Model
from mlpot.errors import UserError

if TYPE_CHECKING:
    from mlpot.potential import Potential

MOST_ATOMS = 2000  # in one batch


def predict(
    model: Model,
    structures: Annotated[Path, typer.Argument(help="structures, in any format that ASE reads")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="file to write: .xyz or the like; .csv for properties")
    ],
    index: Annotated[str, typer.Option("--index", help="which structures: ':', '::10', '-1'")] = ":",
    forces: Annotated[bool, typer.Option("--forces/--no-forces", help="predict forces")] = True,
    stress: Annotated[
        bool | None, typer.Option("--stress/--no-stress", help="predict stress; by default where there is a full cell")
    ] = None,
    batch_atoms: Annotated[int, typer.Option("--batch-atoms", min=1, help="atoms in one batch, at most")] = MOST_ATOMS,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Energies, forces and stress of many structures, or their properties, written beside them.

    Example:  mlpot predict runs/mydata new.xyz -o predicted.xyz

    What the frames carry besides (names, ids, constraints) is kept. Energies are in eV, forces in eV/Å, stress in eV/Å³
    with ASE's sign.

    A model of properties takes tables with SMILES as well, and writes a table:

    mlpot predict runs/esol molecules.csv -o predicted.csv
    """
    from mlpot.commands import terminal
    from mlpot.commands.files import write_frames
    from mlpot.commands.properties import predict_molecules
    from mlpot.data.opening import read_structures
    from mlpot.property_model import PropertyModel

    screen = terminal.console(as_json)
    found = terminal.load_model(model, device, dtype)
    if isinstance(found, PropertyModel):
        rows = predict_molecules(found, structures, output, index, batch_atoms, screen)
        if as_json:
            terminal.print_json({"output": str(output), "n_structures": len(rows), "rows": rows})
        return
    potential = found
    frames = read_structures(structures, index)
    full = [bool(atoms.pbc.all()) for atoms in frames]
    if stress and not any(full):
        raise UserError(
            f"{structures}: --stress needs structures that are periodic in three directions; none of them is."
        )
    wanted = any(full) if stress is None else stress
    with terminal.bar("predicting", len(frames), screen) as update:
        predict_frames(potential, frames, str(structures), forces, wanted, batch_atoms, update)
    write_frames(output, frames)
    energies = [float(atoms.calc.results["energy"]) for atoms in frames]
    screen.print(f"{output}: {len(frames)} structures, energies from {min(energies):.6g} to {max(energies):.6g} eV")
    if as_json:
        terminal.print_json(
            {
                "output": str(output),
                "n_structures": len(frames),
                "energy_eV": energies,
                "n_atoms": [len(atoms) for atoms in frames],
            }
        )


def predict_frames(
    potential: Potential, frames: list[Any], where: str, forces: bool, stress: bool, batch_atoms: int, update: Any
) -> None:
    """Give each of the ``ase.Atoms`` a calculator that holds its predictions; in batches of at most `batch_atoms`."""
    import numpy as np
    from ase.calculators.singlepoint import SinglePointCalculator

    from mlpot.convert import ase as convert
    from mlpot.data.loader import plan_batches
    from mlpot.graph import AtomsGraph
    from mlpot.potential import predict as predict_graph

    sizes = np.array([len(atoms) for atoms in frames])
    device = next((p.device for p in potential.parameters()), None)
    for indices in plan_batches(np.arange(len(frames)), None, sizes, batch_atoms):
        chosen = [frames[i] for i in indices]
        graph = AtomsGraph.from_ase(chosen, potential.cutoff)
        graph = graph if device is None else graph.to(device)
        try:
            out = predict_graph(potential, graph, forces=forces, stress=stress)
        except UserError as error:
            raise UserError(f"{where}: frames {indices[0]} to {indices[-1]}: {error}") from None
        except RuntimeError as error:
            if "memory" not in str(error).lower():
                raise
            raise UserError(
                f"{where}: out of memory with {graph.n_atoms} atoms, {graph.n_edges} edges, {potential.dtype}. "
                f"Use a smaller --batch-atoms, or --dtype float32."
            ) from None
        energy = out.energy.cpu().numpy()
        split = np.split(
            np.zeros((0, 3)) if out.forces is None else out.forces.cpu().numpy(), np.cumsum(sizes[indices])[:-1]
        )
        for k, atoms in enumerate(chosen):
            results: dict[str, Any] = {"energy": float(energy[k])}
            if out.forces is not None:
                results["forces"] = split[k]
            if out.stress is not None and atoms.pbc.all():
                results["stress"] = convert.to_voigt(out.stress[k].cpu().numpy())
            if not all(np.isfinite(value).all() for value in results.values()):
                raise UserError(f"{where}: frame {indices[k]}: the prediction is not finite; look at its distances.")
            atoms.calc = SinglePointCalculator(atoms, **results)
        update(int(indices[-1]) + 1)
