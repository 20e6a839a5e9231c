"""What users rely on: shapes, batches, files, the calculator, and that looking does not change anything."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mlpot import checkpoint
from mlpot.calculator import Calculator
from mlpot.convert import ase as convert
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.neighbors import SkinList, neighbor_list
from mlpot.potential import as_potential, predict
from mlpot.structure import MAX_NUMBER, Structure
from mlpot.testing.bench import Answer, Bench, Check, Figure, NotApplicableError, difference
from mlpot.testing.structures import moved


def _tensors(graph: AtomsGraph) -> dict[str, Tensor]:
    return {f.name: value for f in fields(graph) if isinstance(value := getattr(graph, f.name), Tensor)}


def input_is_not_changed(bench: Bench) -> Iterator[Figure]:
    """`predict` leaves the graph, the parameters, the mode, torch's generator and default dtype as they are."""
    graph = bench.graph(bench.samples.mixed())
    tensors, state = _tensors(graph), bench.model.state_dict()
    before = {name: value.clone() for name, value in tensors.items()}
    parameters = {name: value.clone() for name, value in state.items()}
    surroundings = torch.get_rng_state(), torch.get_default_dtype(), bench.model.training
    bench.answer_of(graph)
    changed = [name for name, value in before.items() if not torch.equal(value, getattr(graph, name))]
    changed += [name for name, value in tensors.items() if value.requires_grad]
    changed += [name for name, value in parameters.items() if not torch.equal(value, state[name])]
    if not torch.equal(surroundings[0], torch.get_rng_state()):
        changed.append("random state")
    if surroundings[1:] != (torch.get_default_dtype(), bench.model.training):
        changed.append("default dtype or training mode")
    yield Figure(f"things changed ({', '.join(changed) or 'none'})", float(len(changed)), 0.0)


def nothing_is_remembered(bench: Bench) -> Iterator[Figure]:
    """Dense, sparse, dense again: the third answer is the first."""
    dense, sparse = bench.samples.crystal(), bench.samples.atom()
    first = bench.answer(dense)
    bench.answer(sparse)
    yield from bench.compare("dense again", bench.answer(dense), first, bench.exactly)


def shapes(bench: Bench) -> Iterator[Figure]:
    """Shapes and dtypes as promised, for one structure, one atom and a batch; nothing that was not asked for."""
    wrong = []
    mixed = bench.samples.mixed()
    for name, structures in (("one structure", mixed[:1]), ("one atom", mixed[1:2]), ("a batch", mixed)):
        graph = bench.graph(structures)
        s, n = graph.n_structures, graph.n_atoms
        out = predict(bench.model, graph, forces=True, stress=True)
        expected = {"energy": (s,), "atom_energies": (n,), "forces": (n, 3), "stress": (s, 3, 3)}
        for key, shape in expected.items():
            value = getattr(out, key)
            if value is None or tuple(value.shape) != shape or value.dtype != torch.float64 or value.requires_grad:
                wrong.append(f"{name}: {key}")
        periodic = graph.pbc.all(dim=1)
        assert out.stress is not None
        if bool(out.stress[periodic].isnan().any()) or not bool(out.stress[~periodic].isnan().all()):
            wrong.append(f"{name}: stress is NaN where and only where there is no periodicity in three directions")
    plain = predict(bench.model, bench.graph(mixed), forces=False)
    if plain.forces is not None or plain.stress is not None:
        wrong.append("forces or stress without being asked")
    yield Figure(f"wrong ({'; '.join(wrong) or 'none'})", float(len(wrong)), 0.0)


def batch_equals_singles(bench: Bench) -> Iterator[Figure]:
    """A structure's answer does not depend on its company: periodic and free, one atom, no edges."""
    mixed = bench.samples.mixed()
    singles = [bench.answer(one) for one in mixed]
    for name, order in (("in order", slice(None)), ("in reverse", slice(None, None, -1))):
        columns = zip(*singles[order], strict=True)
        yield from bench.compare(name, bench.answer(mixed[order]), Answer(*(torch.cat(list(c)) for c in columns)))


def longer_edges_do_not_count(bench: Bench) -> Iterator[Figure]:
    """A graph that holds pairs beyond the cutoff gives the same answer, as in sums of short and long parts."""
    mixed = bench.samples.mixed()
    yield from bench.compare(
        "cutoff + 1 Å", bench.answer_of(bench.graph(mixed, bench.cutoff + 1.0)), bench.answer(mixed)
    )


def refuses_what_it_cannot_answer(bench: Bench) -> Iterator[Figure]:
    """A graph with too short a cutoff and an element it does not know are errors, not answers."""
    accepted = []
    structure = bench.samples.molecule(3)
    if bench.model.cutoff > 0 and _answers(bench, bench.graph(structure, 0.9 * bench.model.cutoff)):
        accepted.append("a graph with too short a cutoff")
    if bench.model.elements is not None:
        foreign = next((z for z in range(1, MAX_NUMBER + 1) if z not in bench.model.elements), None)
        if foreign is not None:
            strange = Structure.of([foreign], [[0.0, 0.0, 0.0]], charge=structure.charge, spin=structure.spin)
            if _answers(bench, bench.graph(strange)):
                accepted.append(f"element {foreign}")
    yield Figure(f"accepted ({', '.join(accepted) or 'none'})", float(len(accepted)), 0.0)


def _answers(bench: Bench, graph: AtomsGraph) -> bool:
    try:
        predict(bench.model, graph)
    except UserError:
        return False
    return True


def save_and_load(bench: Bench) -> Iterator[Figure]:
    """A saved and loaded potential gives the same answer to the bit."""
    original = copy.deepcopy(bench.model).cpu()
    try:
        checkpoint.describe(original)
    except UserError as error:
        raise NotApplicableError(str(error)) from None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "potential.mlpot"
        checkpoint.save(path, original, {"note": "conformance"})
        loaded = as_potential(checkpoint.load(path))
    same = loaded.elements == original.elements and loaded.dtype == original.dtype and loaded.cutoff == original.cutoff
    yield Figure("elements, dtype and cutoff are the same", 0.0 if same else 1.0, 0.0)
    graph = bench.graph(bench.samples.mixed()).to("cpu")
    yield from bench.compare("loaded", bench.answer_of(graph, loaded), bench.answer_of(graph, original), 0.0)


def _calculated(calculator: Calculator, structure: Structure) -> Answer:
    atoms = convert.atoms(structure)
    atoms.calc = calculator
    periodic = bool(structure.pbc.all())
    stress = atoms.get_stress(voigt=False) * abs(np.linalg.det(structure.cell)) if periodic else np.zeros((3, 3))
    return Answer(
        torch.tensor([atoms.get_potential_energy()], dtype=torch.float64),
        torch.from_numpy(atoms.get_potential_energies()),
        torch.from_numpy(atoms.get_forces()),
        torch.from_numpy(stress)[None],
    )


def _calculator(bench: Bench, skin: float) -> Calculator:
    return Calculator(bench.model, device=str(bench.device), dtype=str(bench.dtype).removeprefix("torch."), skin=skin)


def calculator_equals_predict(bench: Bench) -> Iterator[Figure]:
    """The ASE calculator says what `predict` says."""
    calculator = _calculator(bench, 0.0)
    for one in bench.samples.mixed():
        name = f"{len(one)} atoms, periodic in {int(one.pbc.sum())} directions"
        yield from bench.compare(name, _calculated(calculator, one), bench.answer(one))


def skin_list_equals_fresh_list(bench: Bench) -> Iterator[Figure]:
    """Keeping neighbours for several steps finds the pairs that a fresh search finds, and the same forces."""
    for name, one in (("crystal", bench.samples.crystal()), ("molecule", bench.samples.molecule())):
        kept = SkinList(bench.cutoff, 0.6)
        calculator = _calculator(bench, 0.6)
        missing = 0
        for _ in range(6):
            one = moved(one, bench.rng.normal(scale=0.08 * bench.samples.bond(*one.numbers[:2]), size=(len(one), 3)))
            missing += len(_pairs(*kept(one)) ^ _pairs(*neighbor_list(one, bench.cutoff)))
            yield from bench.compare(name, _calculated(calculator, one), bench.answer(one))
        yield Figure(f"{name}, pairs that differ", float(missing), 0.0)


def _pairs(edge_index: np.ndarray, edge_shift: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(row) for row in np.column_stack([edge_index.T, edge_shift]).tolist()}


def float32_is_close_to_float64(bench: Bench) -> Iterator[Figure]:
    """Energies and forces in float32 are those in float64 but for rounding."""
    if bench.dtype != torch.float32:
        raise NotApplicableError("compared in the float32 round")
    mixed = bench.samples.mixed()
    double = copy.deepcopy(bench.model).to(torch.float64)
    got, expected = bench.answer(mixed), bench.answer(mixed, double)
    yield from bench.compare("float32", got, expected, 2 * bench.tolerance)
    yield Figure("energies are in float64", difference(got.energy, got.energy.double()), 0.0)


CHECKS: tuple[Check, ...] = (
    input_is_not_changed,
    nothing_is_remembered,
    shapes,
    batch_equals_singles,
    longer_edges_do_not_count,
    refuses_what_it_cannot_answer,
    save_and_load,
    calculator_equals_predict,
    skin_list_equals_fresh_list,
    float32_is_close_to_float64,
)
