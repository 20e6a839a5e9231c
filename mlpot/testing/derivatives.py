"""Forces, stresses and parameter gradients against differences of energies, and where they might break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mlpot.potential import predict
from mlpot.structure import Structure
from mlpot.testing.bench import Bench, Check, Figure, NotApplicableError, difference, largest
from mlpot.testing.structures import moved, strained

# The points x + k h that a slope is taken from, with an error of order h⁴.
POINTS = (-2.0, -1.0, 1.0, 2.0)


def _slope(values: Tensor, step: float) -> Tensor:
    """f'(x) from f at `POINTS`, (..., 4). Differences come first, so that large constants cancel exactly."""
    wide, near = values[..., 3] - values[..., 0], values[..., 2] - values[..., 1]
    return (8.0 * near - wide) / (12.0 * step)


def _only_float64(bench: Bench) -> None:
    if bench.dtype != torch.float64:
        raise NotApplicableError("differences of float32 energies are all rounding")


def _slopes(bench: Bench, at: Callable[[int, float], Structure], n: int, step: float) -> Tensor:
    """dE/dx of n coordinates x, (n,); `at(k, h)` is the structure with coordinate k moved by h."""
    structures = [at(k, step * multiple) for k in range(n) for multiple in POINTS]
    # Atom by atom, so that reference energies cancel before anything is added up.
    energies = predict(bench.model, bench.graph(structures), forces=False).atom_energies.cpu()
    return _slope(energies.reshape(n, len(POINTS), -1).mT, step).sum(1)


def force_is_slope(bench: Bench) -> Iterator[Figure]:
    """F = -dE/dR by finite differences in float64."""
    _only_float64(bench)
    samples = bench.samples
    molecule = samples.clear_of_cutoffs(lambda: samples.molecule(5))
    crystal = samples.clear_of_cutoffs(lambda: samples.crystal(4))
    for name, one in (("molecule", molecule), ("crystal", crystal)):

        def at(k: int, h: float, one: Structure = one) -> Structure:
            by = np.zeros(3 * len(one))
            by[k] = h
            return moved(one, by.reshape(-1, 3))

        forces = bench.answer(one).forces.flatten()
        error = difference(-_slopes(bench, at, 3 * len(one), 2e-4), forces)
        yield Figure(f"{name}, relative to the largest force", error / max(1e-3, largest(forces)), 1e-6)


def stress_is_slope(bench: Bench) -> Iterator[Figure]:
    """Stress times volume = dE/dε by finite differences in float64, left-handed cell included."""
    _only_float64(bench)
    crystal = bench.samples.clear_of_cutoffs(lambda: bench.samples.crystal(4))
    left_handed = replace(crystal, cell=crystal.cell[[2, 1, 0]])

    for name, one in (("crystal", crystal), ("left-handed cell", left_handed)):

        def at(k: int, h: float, one: Structure = one) -> Structure:
            strain = np.zeros(9)
            strain[k] = h
            return strained(one, strain.reshape(3, 3))

        virial = bench.answer(one).virial.flatten()
        error = difference(_slopes(bench, at, 9, 4e-5), virial)
        yield Figure(f"{name}, relative to the largest component", error / max(1e-3, largest(virial)), 1e-6)


def smooth_at_cutoff(bench: Bench) -> Iterator[Figure]:
    """Energy and forces just inside a cutoff continue those just outside it."""
    samples, delta = bench.samples, 1e-6
    precise = bench.dtype == torch.float64
    bond = samples.bond(samples.elements[0], samples.elements[-1])
    for cutoff in samples.cutoffs:
        # Inside a shorter cutoff of a part, the other parts' forces change a little over the step.
        allowed = 1e-5 if precise and cutoff == samples.cutoff else 2e-4
        for name, before in (("pair", ()), ("atom near a bond", (bond,))):
            inside, outside = (bench.answer(samples.line(*before, cutoff + side)) for side in (-delta, delta))
            size = max(1.0, float(outside.atom_energies.abs().sum()))
            slope = -0.5 * float(inside.forces[-1, 2] + outside.forces[-1, 2])
            jump = abs(float(outside.energy - inside.energy) - 2.0 * delta * slope) / size
            yield Figure(f"{name} at {cutoff:g} Å, energy", jump, 1e-9 if precise else 5e-5)
            jump = difference(inside.forces, outside.forces) / max(1.0, largest(outside.forces))
            yield Figure(f"{name} at {cutoff:g} Å, forces", jump, allowed)


def no_gradient_across_structures(bench: Bench) -> Iterator[Figure]:
    """The energy of one structure of a batch has no slope in the atoms of another."""
    graph = bench.graph(bench.samples.mixed())
    positions = graph.positions.clone().requires_grad_()
    energies = bench.model.atom_energies(graph.moved(positions)).to(torch.float64)
    if not energies.requires_grad or energies.grad_fn is None:
        raise NotApplicableError("the energy does not depend on positions")
    for chosen in range(graph.n_structures):
        total = energies[graph.batch == chosen].sum()
        (gradient,) = torch.autograd.grad(total, positions, retain_graph=True, materialize_grads=True)
        yield Figure(f"structure {chosen}", largest(gradient[graph.batch != chosen]), 0.0)


def _trainable(bench: Bench) -> dict[str, Tensor]:
    parameters: dict[str, Tensor] = {name: p for name, p in bench.model.named_parameters() if p.requires_grad}
    if not parameters:
        raise NotApplicableError("the potential has no parameters to train")
    return parameters


def _force_loss(bench: Bench, structures: list[Structure]) -> Tensor:
    out = predict(bench.model, bench.graph(structures), create_graph=True)
    assert out.forces is not None
    return out.forces.square().sum()


def training_reaches_every_parameter(bench: Bench) -> Iterator[Figure]:
    """A loss on energies and forces has a slope in every parameter, through the forces' own graph."""
    parameters = _trainable(bench)
    structures = [bench.samples.molecule(), bench.samples.crystal()]
    out = predict(bench.model, bench.graph(structures), create_graph=True)
    assert out.forces is not None
    loss = out.energy.sum() + out.forces.square().sum()
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    lost = [name for name, g in zip(parameters, gradients, strict=True) if g is None or not bool((g != 0).any())]
    yield Figure(f"parameters without a slope ({', '.join(lost) or 'none'})", float(len(lost)), 0.0)


def force_loss_slope(bench: Bench) -> Iterator[Figure]:
    """The slope of a loss on forces along a random direction of the parameters, by finite differences in float64."""
    _only_float64(bench)
    parameters = list(_trainable(bench).values())
    structures = [bench.samples.molecule(4), bench.samples.lattice(), bench.samples.crystal(3)]
    loss = _force_loss(bench, structures)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    direction = [torch.from_numpy(np.asarray(bench.rng.normal(size=tuple(p.shape)))).to(p) for p in parameters]
    direction = [d / max(1.0, largest(d)) for d in direction]
    slope = float(sum((g * d).sum() for g, d in zip(gradients, direction, strict=True)))
    step, values = 1e-4, []
    saved = [p.detach().clone() for p in parameters]
    for multiple in POINTS:
        with torch.no_grad():
            for p, start, d in zip(parameters, saved, direction, strict=True):
                p.copy_(start + multiple * step * d)
        values.append(_force_loss(bench, structures).detach())
    error = abs(slope - float(_slope(torch.stack(values), step)))
    yield Figure("relative to the loss or its slope", error / max(1e-6, abs(slope), float(loss.detach())), 1e-6)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "MSE": F.mse_loss,
    "L1": F.l1_loss,
    "Huber": F.huber_loss,
    "vector norm": lambda got, wanted: torch.linalg.vector_norm(got - wanted, dim=-1).mean(),
}


def zero_vectors_train(bench: Bench) -> Iterator[Figure]:
    """No NaN from the norm of a zero vector: lone atoms, forces of zero, bonds along an axis, straight angles."""
    samples = bench.samples
    z = samples.elements
    pair = samples.line(samples.bond(z[0], z[1 % len(z)]))
    structures = [samples.molecule_and_stray(), samples.lattice(), pair, samples.straight(), samples.atom()]
    graph = bench.graph(structures)
    answer = bench.answer_of(graph)
    finite = all(bool(torch.isfinite(x).all()) for x in answer)
    yield Figure("energies, forces and stress are finite", 0.0 if finite else float("nan"), 0.0)
    parameters = [p for p in bench.model.parameters() if p.requires_grad]
    for name, loss_of in LOSSES.items() if parameters else ():
        out = predict(bench.model, graph, create_graph=True)
        assert out.forces is not None
        loss = loss_of(out.forces, torch.zeros_like(out.forces)) + out.energy.mean()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        bad = sum(int((~torch.isfinite(g)).sum()) for g in gradients)
        yield Figure(f"{name} loss, parameters with a slope that is not finite", float(bad), 0.0)


CHECKS: tuple[Check, ...] = (
    force_is_slope,
    stress_is_slope,
    smooth_at_cutoff,
    no_gradient_across_structures,
    training_reaches_every_parameter,
    force_loss_slope,
    zero_vectors_train,
)
