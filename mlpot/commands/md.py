"""mlpot md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mlpot.commands.terminal import AsJson, Device, Dtype, Model
from mlpot.errors import UserError


def md(
    model: Model,
    structure: Annotated[Path, typer.Argument(help="the structure to start from, in any format that ASE reads")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="trajectory: .xyz or .traj; the log goes beside it")
    ] = Path("md.xyz"),
    ensemble: Annotated[str, typer.Option("--ensemble", help="nve, langevin, bussi (nvt) or npt")] = "nve",
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="K, of first velocities and bath")] = 300.0,
    temperature_end: Annotated[float | None, typer.Option("--temperature-end", help="K: ramp the bath to it")] = None,
    time: Annotated[str | None, typer.Option("--time", help="whole length of the run: 500fs, 5ps, 1ns")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="number of steps in all, in place of --time")] = None,
    timestep: Annotated[float, typer.Option("--timestep", help="fs")] = 0.5,
    every: Annotated[int, typer.Option("--every", help="steps between two frames and rows of the log")] = 10,
    thermostat_time: Annotated[float, typer.Option("--thermostat-time", help="fs; 1/friction for langevin")] = 100.0,
    pressure: Annotated[float, typer.Option("--pressure", help="GPa, for npt")] = 0.0,
    barostat_time: Annotated[float, typer.Option("--barostat-time", help="fs, for npt")] = 1000.0,
    seed: Annotated[int, typer.Option("--seed", help="of velocities and bath")] = 0,
    keep_velocities: Annotated[bool, typer.Option("--keep-velocities", help="begin with those in the file")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="go on from the last frame of the output")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace an output that is there")] = False,
    max_temperature: Annotated[
        float | None, typer.Option("--max-temperature", help="K: stop above it; default 5 times the target + 1000")
    ] = None,
    max_bond: Annotated[
        float, typer.Option("--max-bond", help="stop when a bond of the start is this many covalent lengths; 0: never")
    ] = 2.0,
    index: Annotated[str, typer.Option("--index", help="which structure of the file")] = "-1",
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Molecular dynamics with a trained potential.

    Example:      mlpot md runs/mydata start.xyz --ensemble langevin --temperature 300 --time 5ps -o md.xyz

    After a stop: the same line with --restart; --time and --steps count from the very beginning.

    Writes md.xyz (positions, momenta, forces, energy), md.csv (energies, temperature) and md.restart.npz. Stops, with
    exit code 2 and all good frames kept, when the temperature or a bond runs away or the potential fails.
    """
    import torch

    from mlpot.calculator import Calculator
    from mlpot.commands import terminal
    from mlpot.commands.files import model_path
    from mlpot.data.opening import read_structures
    from mlpot.device import threads_for
    from mlpot.simulate.md import run_md

    screen = terminal.console(as_json)
    total = number_of_steps(time, steps, timestep)
    (atoms,) = read_structures(structure, index)[-1:]
    torch.set_num_threads(threads_for(len(atoms)))
    atoms.calc = Calculator(model_path(model), device=device, dtype=dtype)
    with terminal.bar(ensemble, total, screen) as update:
        result = run_md(
            atoms,
            output=output,
            restart=restart,
            overwrite=force,
            keep_positions=False,
            progress=lambda step, row: update(step, f"{row['temperature_K']:.0f} K"),
            ensemble=ensemble,
            steps=total,
            timestep=timestep,
            temperature=temperature,
            temperature_end=temperature_end,
            thermostat_time=thermostat_time,
            pressure=pressure,
            barostat_time=barostat_time,
            seed=seed,
            keep_velocities=keep_velocities,
            every=every,
            max_temperature=max_temperature,
            max_bond=max_bond,
        )
    half = len(result.temperature) // 2
    summary: dict[str, Any] = {
        "output": str(result.trajectory),
        "log": str(result.log_file),
        "ensemble": ensemble,
        "steps": int(result.log["step"][-1]),
        "time_fs": float(result.times_fs[-1]),
        "n_atoms": result.n_atoms,
        "temperature_K": float(result.temperature[half:].mean()),
        "drift_meV_per_atom_per_ps": result.drift() if ensemble == "nve" else None,
        "seconds": result.seconds,
    }
    screen.print(
        f"{summary['output']}: {summary['time_fs'] / 1000:g} ps of {ensemble}, {summary['temperature_K']:.1f} K in the "
        f"second half; log {summary['log']}"
    )
    if ensemble == "nve":
        screen.print(f"energy drift {summary['drift_meV_per_atom_per_ps']:.4f} meV/atom/ps")
    if as_json:
        terminal.print_json(summary)


def number_of_steps(time: str | None, steps: int | None, timestep: float) -> int:
    """Steps of a run, given in one of two ways."""
    from mlpot.commands import terminal

    if (time is None) == (steps is None):
        raise UserError("say how long to run: either --time (5ps) or --steps (10000).")
    if not timestep > 0:
        raise UserError(f"timestep is {timestep}; expected a number of fs above zero.")
    return int(steps) if steps is not None else round(terminal.femtoseconds(str(time)) / timestep)
