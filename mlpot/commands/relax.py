"""mlpot relax."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mlpot.commands.terminal import AsJson, Device, Dtype, Model


def relax(
    model: Model,
    structures: Annotated[Path, typer.Argument(help="one or more structures, in any format that ASE reads")],
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write: .xyz, .traj, .cif, ...")],
    cell: Annotated[bool, typer.Option("--cell", help="relax the cell too")] = False,
    pressure: Annotated[float, typer.Option("--pressure", help="GPa, with --cell")] = 0.0,
    fmax: Annotated[float, typer.Option("--fmax", help="largest force that may be left, eV/Å")] = 0.01,
    steps: Annotated[int, typer.Option("--steps", help="at most, for each structure")] = 500,
    optimizer: Annotated[str, typer.Option("--optimizer", help="bfgs, lbfgs or fire")] = "bfgs",
    index: Annotated[str, typer.Option("--index", help="which structures: ':', '::10', '-1'")] = ":",
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Relax structures, with or without their cell.

    Example:  mlpot relax runs/mydata start.cif -o relaxed.xyz --cell

    Constraints in the input hold. A structure that does not converge is written as far as it came; the command says so
    and ends with exit code 1.
    """
    import torch

    from mlpot.calculator import Calculator
    from mlpot.commands import terminal
    from mlpot.commands.files import model_path, write_frames
    from mlpot.data.opening import read_structures
    from mlpot.device import threads_for
    from mlpot.errors import UserError
    from mlpot.simulate.files import labelled
    from mlpot.simulate.relax import relax as run_relax

    screen = terminal.console(as_json)
    frames = read_structures(structures, index)
    torch.set_num_threads(threads_for(max((len(atoms) for atoms in frames), default=1)))
    calculator = Calculator(model_path(model), device=device, dtype=dtype)
    done: list[Any] = []
    rows: list[dict[str, Any]] = []
    for number, atoms in enumerate(frames):
        atoms.calc = calculator
        with terminal.bar(f"structure {number}", steps, screen) as update:
            try:
                result = run_relax(
                    atoms,
                    fmax=fmax,
                    steps=steps,
                    cell=cell,
                    pressure=pressure,
                    optimizer=optimizer,
                    progress=lambda step, energy, force: update(step, f"{energy:.4f} eV, {force:.3f} eV/Å"),
                )
            except UserError as error:
                if done:
                    write_frames(output, done)
                raise UserError(f"{structures}: structure {number}: {error}") from None
        results = {"energy": result.energy, "forces": atoms.get_forces(apply_constraint=False)}
        if cell:
            results["stress"] = atoms.get_stress(apply_constraint=False)
        atoms.info["converged"] = result.converged
        frame = labelled(atoms, results)
        lost = len(atoms.constraints) - len(frame.constraints)
        done.append(frame)
        row = {
            "converged": result.converged,
            "steps": result.steps,
            "energy_eV": result.energy,
            "energy_change_eV": result.energy - result.first_energy,
            "max_force_eV_per_A": result.max_force,
            "max_stress_GPa": result.max_stress,
        }
        rows.append(row)
        state = "converged" if result.converged else f"NOT converged, largest force {result.max_force:.4f} eV/Å,"
        screen.print(
            f"structure {number}: {state} after {result.steps} steps; {result.energy:.6f} eV "
            f"({row['energy_change_eV']:+.6f})"
        )
        if lost:
            screen.print(f"  {lost} of its constraints held, but cannot be written with it (only fixed atoms can).")
    write_frames(output, done)
    failed = sum(not row["converged"] for row in rows)
    screen.print(f"{output}: {len(done)} structures" + (f", {failed} of them not converged" if failed else ""))
    if as_json:
        terminal.print_json({"output": str(output), "structures": rows})
    if failed:
        raise typer.Exit(1)
