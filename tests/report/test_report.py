"""Reports: one self-contained file with the right numbers, whatever is missing, and a moving picture in a browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from mlpot.errors import UserError
from mlpot.report import geometry, html, plots
from mlpot.report.demo import write_demo_report
from mlpot.report.inputs import Dynamics, Predictions, Reference, TrainingResult
from mlpot.report.motion import overlap
from mlpot.report.run import write_run_report

ETHANOL = np.array([6, 6, 8, 1, 1, 1, 1, 1, 1])
SHAPE = np.array(
    [
        [1.168, -0.400, 0.0], [0.0, 0.555, 0.0], [-1.190, -0.215, 0.0], [-1.946, 0.381, 0.0], [0.041, 1.205, 0.885],
        [0.041, 1.205, -0.885], [2.115, 0.144, 0.0], [1.128, -1.036, 0.885], [1.128, -1.036, -0.885],
    ]
)  # fmt: skip


class Document(HTMLParser):
    """What a browser would load, and the text it would show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "action", "data")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def predictions(frames: int = 300, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    energy, forces = rng.normal(-310, 0.3, frames), rng.normal(0, 1.2, (9 * frames, 3))
    noisy = energy + rng.normal(0, 0.01, frames), forces + rng.normal(0, 0.02, forces.shape)
    return Predictions(np.full(frames, 9), energy, noisy[0], forces, noisy[1])


def training(**changes: object) -> TrainingResult:
    entry = {"n": 27000, "mae": 14.62, "rmse": 21.98, "max": 517.2}
    metrics = {
        "test": {
            "n_frames": 1000,
            "forces": entry,
            "energy_per_atom": {"n": 1000, "mae": 0.5264, "rmse": 0.66, "max": 2.3},
            "forces_mae_meV_per_A": 14.62,
            "energy_mae_meV_per_atom": 0.5264,
            "per_element": {"H": {"forces": entry}, "C": {"forces": {**entry, "mae": 31.37}}},
            "per_config_type": {"hot": {"forces": entry}},
        }
    }
    rows = [
        {"epoch": i, "step": 20 * i, "seconds": 1.5 * i, "learning_rate": 1e-3, "train_loss": 1 / i, "valid_loss": ""}
        | {"valid_forces_mae_meV_per_A": str(300 / i)}
        for i in range(1, 41)
    ]
    values = {
        "config": {"model": {"name": "schnet", "cutoff": 5.0}},
        "log_rows": rows,
        "metrics": metrics,
        "predictions": {"test": predictions()},
        "goals": {"forces_mae_meV_per_A": 25.0},
        "provenance": {"data sha256": "c0ffee"},
    }
    return TrainingResult(**{**values, **changes})  # type: ignore[arg-type]


def dynamics(samples: int = 200, name: str = "NVE", **changes: object) -> Dynamics:
    rng = np.random.default_rng(1)
    time = np.arange(samples, dtype=float)
    kinetic = 0.5 + 0.1 * np.sin(time / 3)
    values = {
        "times_fs": time,
        "potential_energy": -310 - kinetic + 9 * 0.25e-3 * time / 1000,  # a drift of 0.25 meV/atom/ps
        "kinetic_energy": kinetic,
        "temperature": kinetic * 860,
        "numbers": ETHANOL,
        "positions": SHAPE + rng.normal(0, 0.03, (samples, 9, 3)),
    }
    return Dynamics(name, **{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demonstration's report at full size: two runs of 10 ps with a frame every 5 fs, 27,000 force components."""
    path = tmp_path_factory.mktemp("report") / "demo.html"
    samples = dynamics(10_000)
    few = {"positions": np.tile(samples.positions[:200], (10, 1, 1)), "frame_times_fs": samples.times_fs[::5]}
    write_demo_report(
        path,
        title="Ethanol <script>alert(1)</script>",
        training=training(predictions={"test": predictions(1000)}),
        dynamics=[
            dynamics(10_000, **few),
            dynamics(10_000, "NVT", **few, target_temperature=430.0, conserves_energy=False),
        ],
        reference=Reference("Labels", ETHANOL, samples.positions[::2]),
    )
    return path


def test_one_file_that_loads_nothing(demo: Path) -> None:
    text = demo.read_text(encoding="utf-8")
    page = Document(text)
    outside = [link for link in page.links if not re.match(r"#|data:", link)]
    assert page.links
    assert not outside
    assert not re.search(r"@import|url\((?!#)", "".join(re.findall(r"<style>.*?</style>", text, re.DOTALL)))
    assert "sourceMappingURL" not in text
    assert "default-src 'none'" in text
    assert page.tags.count("svg") >= 12
    assert demo.stat().st_size < 3e6
    assert [p.name for p in demo.parent.iterdir()] == ["demo.html"]  # no temporary file left


def test_text_is_escaped(demo: Path) -> None:
    text = demo.read_text(encoding="utf-8")
    assert "<script>alert(1)" not in text
    assert "Ethanol &lt;script&gt;alert(1)&lt;/script&gt;" in text
    page = html.Page("t")
    page.add(html.table(["<b>"], [["<i>&"]]), html.cards([html.Card("<u>", "<s>", "<k>", "<j>")]), html.note("<q>"))
    page.scripts["x"] = "let a = '</script><!--'\n//# sourceMappingURL=x.js.map"
    assert not {"b", "i", "u", "s", "k", "j", "q"} & set(Document(page.render()).tags)
    assert page.render().count("</script>") == 1


def test_numbers_and_judgements(demo: Path) -> None:
    words = Document(demo.read_text(encoding="utf-8")).words
    assert "Force error (MAE) 14.6 meV/Å ✓ below 25 meV/Å, test set" in words
    assert "Energy error (MAE) 0.526 meV/atom test set" in words
    assert "Energy drift, NVE 0.250 meV/atom/ps ✓ below 1 meV/atom/ps" in words
    assert "Training time 1 min 0 s 40 validations" in words
    assert "C 31.4 22.0 27\u202f000".replace("\u202f", " ") in words.replace("\u202f", " ")
    assert "lowest 7.50" in words
    assert "model.cutoff 5.0" in words
    assert "c0ffee" in words
    assert "slope 0.25 meV/atom/ps" in words


def test_goal_missed(tmp_path: Path) -> None:
    write_run_report(tmp_path / "r.html", title="t", result=training(goals={"forces_mae_meV_per_A": 10.0}))
    assert "✗ not below 10 meV/Å" in Document((tmp_path / "r.html").read_text(encoding="utf-8")).words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (9.996, "10.0"),
        (1234.4, "1\u202f230"),
        (-0.5, "−0.500"),
        (3.2e-7, "3.20e−7"),
        (1500, "1\u202f500"),
        (float("nan"), "–"),
        (None, "–"),
        (np.float64(2.5), "2.50"),
        ("as it is", "as it is"),
        (99.96, "100"),
    ],
)
def test_number(value: object, text: str) -> None:
    assert html.number(value) == text


def test_missing_pieces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bare.html"
    write_run_report(path, title="bare", result=TrainingResult({}))
    assert "svg" not in Document(path.read_text(encoding="utf-8")).tags
    frames = predictions(40)
    gaps = frames.energy_reference.copy()
    gaps[::2] = np.nan
    broken = frames.energy_predicted.copy()
    broken[1] = np.inf
    energies = Predictions(frames.n_atoms, gaps, broken)
    one = training(predictions={"test": energies}, metrics={}, log_rows=[{"step": 1, "train_loss": 0.5}])
    write_demo_report(path, title="energies only", training=one, dynamics=[dynamics(30, positions=None)])
    page = Document(path.read_text(encoding="utf-8"))
    assert "19 values" in page.words
    assert "Force components" not in page.words
    assert "1 prediction of energy on the test set: not a finite number" in page.words
    assert "$3Dmol" not in page.words  # no player, so no library


def test_periodic_run_is_shown_with_its_cell(tmp_path: Path) -> None:
    cell = np.eye(3) * 6.0
    moving = SHAPE + np.linspace(0, 9, 40)[:, None, None] * [1.0, 0, 0]  # crosses the boundary
    run = dynamics(40, positions=moving % 6.0, cell=cell, pbc=(True, True, True))
    write_demo_report(tmp_path / "p.html", title="p", training=TrainingResult({}), dynamics=[run])
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text)[1])
    shown = np.frombuffer(base64.b64decode(data["positions"]), "<i2").reshape(40, 9, 3) * data["resolution"]
    assert data["cells"] == [cell.ravel().tolist()]
    for frame in shown:  # the molecule stays whole, without jumps
        np.testing.assert_allclose(frame - frame[0], SHAPE - SHAPE[0], atol=0.0015)
    np.testing.assert_allclose(np.diff(shown[:, 0, 0]), 9 / 39, atol=0.0015)


def test_crystal_atoms_stay_apart_in_the_cell() -> None:
    grid = np.stack(np.meshgrid(*[np.arange(3) * 2.55] * 3), axis=-1).reshape(-1, 3)
    cell, numbers = np.eye(3) * 7.65, np.full(27, 29)
    shown = geometry.presented((grid - 7.65 * 2)[None], numbers, cell, (True, True, True))
    np.testing.assert_allclose(shown[0], grid, atol=1e-9)


def test_alignment_removes_rotation_and_keeps_shape() -> None:
    rng = np.random.default_rng(2)
    turns = np.stack([np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(5)])
    turns *= np.linalg.det(turns)[:, None, None]
    turned = SHAPE @ turns + rng.normal(size=(5, 1, 3))
    np.testing.assert_allclose(
        geometry.aligned(turned), np.broadcast_to(geometry.aligned(turned)[0], (5, 9, 3)), atol=1e-9
    )
    mirrored = geometry.aligned(np.stack([SHAPE, SHAPE * [1, 1, -1], SHAPE[[0, 1, 2, 3, 4, 5, 6, 8, 7]]]))
    assert np.isfinite(mirrored).all()


def test_bonds_and_their_lengths() -> None:
    index = geometry.bonds(ETHANOL, SHAPE)
    lengths = geometry.bond_lengths(ETHANOL, SHAPE[None], index, None, ())
    assert {name: len(values) for name, values in lengths.items()} == {"C–C": 1, "C–O": 1, "C–H": 5, "O–H": 1}
    assert lengths["C–C"][0] == pytest.approx(np.linalg.norm(SHAPE[0] - SHAPE[1]))
    cell = np.diag([4.0, 0, 0])  # periodic along x alone: two atoms bonded through the boundary
    chain = np.array([[0.2, 0, 0], [3.5, 0, 0]])
    pbc = (True, False, False)
    index = geometry.bonds(np.array([1, 1]), chain, cell, pbc)
    assert index.tolist() == [[0, 1]]
    assert geometry.bond_lengths(np.array([1, 1]), chain[None], index, cell, pbc)["H–H"] == pytest.approx([0.7])
    assert geometry.bonds(np.array([1, 1]), chain).tolist() == []


def test_overlap_and_drift() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    assert overlap(values, values) == 1
    assert overlap(values, values + 100) == 0
    assert dynamics().drift() == pytest.approx(0.25, rel=1e-6)
    assert dynamics(conserves_energy=False).drift() is None
    with pytest.raises(ValueError, match="temperature: shape"):
        dynamics(temperature=np.zeros(3))
    with pytest.raises(ValueError, match="not finite in 1 of 200"):
        dynamics(temperature=np.r_[np.nan, np.ones(199)])
    with pytest.raises(ValueError, match="give both"):
        Predictions(np.array([9]), np.zeros(1))


def test_thinned_lines_keep_their_extremes() -> None:
    y = np.random.default_rng(0).normal(size=50_000)
    x, thin = plots.thinned(np.arange(50_000), y)
    assert len(thin) <= 1200
    assert (thin.min(), thin.max()) == (y.min(), y.max())
    assert (np.diff(x) > 0).all()


def test_figures_share_no_ids_and_leave_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    drawn = [plots.curves(title, [("a", [1, 2], [1.0, 2.0])], "x", "y") for title in ("one", "two")]
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in drawn]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert dict(matplotlib.rcParams) == before
    assert "var(--blue)" in drawn[0]
    assert ">x</text>" in drawn[0]  # text stays text


def test_not_writable_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written"):
        html.Page("t").write(tmp_path / "file" / "report.html")


def test_package_ships_the_files_that_reports_need(repository: Path) -> None:
    settings = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["mlpot"]
    folder = repository / "mlpot"
    needed = [
        f.relative_to(folder).as_posix()
        for f in (folder / "report").rglob("*.*")
        if f.parent.name in ("assets", "vendor")
    ]
    assert len(needed) >= 4
    assert not [name for name in needed if not any(fnmatch(name, pattern) for pattern in patterns)]


# A headless browser paints when it likes: with these the player's clock is the test's, and every stage is in view.
CLOCK = """<script>
window.requestAnimationFrame = (step) => setTimeout(() => step(performance.now()), 400);
window.IntersectionObserver = class {
  constructor(report) { this.report = report; }
  observe() { setTimeout(() => this.report([{ isIntersecting: true }]), 0); }
};
</script>"""
# After a while of playing: what was drawn, and whether another frame is another picture.
PROBE = """<script>
const drawn = (player) => player.querySelector("canvas").toDataURL();
const blank = Object.assign(document.createElement("canvas"), { width: 800, height: 318 }).toDataURL();
setTimeout(() => {
  document.body.dataset.result = JSON.stringify([...document.querySelectorAll(".player")].map((player) => {
    const { state, frame } = player.dataset, slider = player.querySelector("input"), pictures = [];
    for (const value of [10, 150]) {
      slider.value = value;
      slider.dispatchEvent(new Event("input"));
      pictures.push(drawn(player));
    }
    const sizes = pictures.map((picture) => picture.length / blank.length);
    return { state, frame: Number(frame), differ: pictures[0] !== pictures[1], sizes, after: player.dataset.frame };
  }));
}, 1500);
</script>"""


def test_player_draws_and_moves_in_a_browser(demo: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium or Chrome on the PATH, to see the trajectory play")
    page = tmp_path / "probed.html"
    text = demo.read_text(encoding="utf-8").replace("<title>", f"{CLOCK}<title>", 1)
    page.write_text(text.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    options = (
        "--headless --no-sandbox --use-angle=swiftshader --enable-unsafe-swiftshader --disable-quic --no-first-run "
        "--disable-background-networking --disable-component-update --disable-sync --window-size=800,600 "
        f"--virtual-time-budget=3000 --user-data-dir={tmp_path / 'profile'} --dump-dom"
    ).split()
    result = subprocess.run(
        [browser, *options, page.as_uri()], capture_output=True, encoding="utf-8", timeout=240, check=True
    )
    found = re.search(r'<body[^>]* data-result="([^"]*)"', result.stdout)
    assert found, result.stderr[-2000:]
    players = json.loads(found[1].replace("&quot;", '"'))
    assert result.stdout.count("<canvas") == len(players) == 2
    for player in players:
        assert player["state"] == "playing"
        assert player["frame"] > 0
        assert player["after"] == "150"
        assert player["differ"]
        assert min(player["sizes"]) > 2, player  # much more than an empty canvas compresses to
