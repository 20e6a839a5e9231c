"""Reference energies: right where the compositions settle them, said aloud where they do not."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from mlpot.data.frame import Frame
from mlpot.data.opening import open_dataset
from mlpot.data.references import check_scale, from_isolated_atoms, from_mapping, least_squares, sample
from mlpot.errors import PhysicsWarning, UserError
from mlpot.structure import Structure


def labelled(numbers: list[int], energy: float, config_type: str = "") -> Frame:
    positions = np.arange(3 * len(numbers), dtype=float).reshape(-1, 3)
    return Frame(Structure.of(numbers, positions), energy, config_type=config_type)


def test_water_alone_cannot_tell_h_from_o() -> None:
    water = [labelled([8, 1, 1], -14.0), labelled([8, 8, 1, 1, 1, 1], -28.0)]
    with pytest.warns(PhysicsWarning, match=r"rank 1 of 2.*H, O"):
        found = least_squares(water)
    assert found.energies == pytest.approx({1: -5.6, 8: -2.8}, abs=1e-12)
    assert found.ambiguous == ("H", "O")
    assert [found.of(f.structure.numbers) for f in water] == pytest.approx([-14.0, -28.0], abs=1e-12)


def test_a_third_composition_settles_them() -> None:
    frames = [labelled([8, 1, 1], -14.0), labelled([8, 8, 1, 1, 1, 1], -28.0), labelled([1, 1, 8, 8], -18.0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = least_squares(frames)
    assert found.energies == pytest.approx({1: -5.0, 8: -4.0}, abs=1e-12)
    assert (found.rank, found.n_elements, found.ambiguous) == (2, 2, ())


def test_only_the_undetermined_elements_are_named() -> None:
    frames = [labelled([6], -6.0), labelled([6, 6], -12.0), labelled([8, 1, 1], -14.0)]
    with pytest.warns(PhysicsWarning, match=r"rank 2 of 3.*tell H, O apart"):
        found = least_squares(frames)
    assert found.energies[6] == pytest.approx(-6.0)


def test_large_totals_keep_their_digits() -> None:
    reference = -2041.8396
    first, second = labelled([8] * 29, -59455.72540161), labelled([8] * 29, -59455.73137573)
    found = from_mapping({"O": reference}, (8,))
    a, b = (frame.energy - found.of(frame.structure.numbers) for frame in (first, second))
    assert (b - a) * 1e3 == pytest.approx(-5.97412, abs=1e-5)
    assert found.of(np.full(1000, 8)) == pytest.approx(1000 * reference, abs=1e-8)


def test_a_table_that_lacks_an_element_or_is_not_numbers() -> None:
    with pytest.raises(UserError, match="lacks O"):
        from_mapping({"H": -13.6}, (1, 8))
    with pytest.raises(UserError, match='unknown element "Hx"'):
        from_mapping({"Hx": -13.6}, (1,))
    with pytest.raises(UserError, match="H is 'low'"):
        from_mapping({"H": "low"}, (1,))  # type: ignore[dict-item]
    with pytest.raises(UserError, match="no frame has one"):
        least_squares([Frame(Structure.of([1], [[0, 0, 0]]))])


def test_isolated_atoms() -> None:
    frames = [labelled([1], -13.6, "IsolatedAtom"), labelled([8], -2041.8), labelled([8, 1, 1], -2078.0)]
    found = from_isolated_atoms(frames, (1, 8))
    assert found is not None
    assert found.energies == {1: -13.6, 8: -2041.8}
    assert from_isolated_atoms(frames, (1, 6, 8)) is None


def test_references_of_another_scale() -> None:
    box = labelled([8, 1, 1] * 64, -1879.62)
    with pytest.warns(PhysicsWarning, match=r"192 atoms has -1879\.6200 eV.*add up to -13\d{4}"):
        check_scale([box, box], from_mapping({"H": -13.6, "O": -2041.84}, (1, 8)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_scale([box], from_mapping({"H": -9.0, "O": -9.0}, (1, 8)))


def test_published_free_atoms_give_sensible_binding(shared: Path) -> None:
    atoms = open_dataset(shared / "data/acac/isolated_atoms.xyz")
    molecules = open_dataset(shared / "data/acac/train_300K.xyz")
    found = from_isolated_atoms((atoms[i] for i in range(len(atoms))), molecules.elements)
    assert found is not None
    binding = [(f.energy - found.of(f.structure.numbers)) / len(f.structure) for f in sample(molecules, 50)]
    assert -7 < min(binding) < max(binding) < -3
