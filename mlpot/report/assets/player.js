// Plays the trajectories of the page: each .player holds its data, a stage and controls.
(() => {
  "use strict";
  const FRAMES_PER_SECOND = 25;
  const COLOURS = { H: "#f4f6f8", C: "#5a626c", N: "#3b6fd4", O: "#d6453d" };
  const CELL_COLOUR = "#7a8594";

  function decode(data) {
    const bytes = Uint8Array.from(atob(data.positions), (letter) => letter.charCodeAt(0));
    const steps = data.kind === "int16" ? new Int16Array(bytes.buffer) : new Int32Array(bytes.buffer);
    return Float32Array.from(steps, (step) => step * data.resolution);
  }

  // Pairs nearer than the sum of their radii (slack included), found on a grid so that large systems stay quick.
  function findBonds(xyz, start, radii) {
    const bonds = radii.map(() => []);
    const reach = 2 * Math.max(...radii);
    const boxes = new Map();
    const place = (i, axis) => Math.floor(xyz[start + 3 * i + axis] / reach);
    for (let i = 0; i < radii.length; i++) {
      const [a, b, c] = [place(i, 0), place(i, 1), place(i, 2)];
      for (let u = a - 1; u <= a + 1; u++) for (let v = b - 1; v <= b + 1; v++) for (let w = c - 1; w <= c + 1; w++) {
        for (const j of boxes.get(`${u},${v},${w}`) || []) {
          const p = start + 3 * i, q = start + 3 * j, most = radii[i] + radii[j];
          const square = (xyz[p] - xyz[q]) ** 2 + (xyz[p + 1] - xyz[q + 1]) ** 2 + (xyz[p + 2] - xyz[q + 2]) ** 2;
          if (square < most * most) { bonds[i].push(j); bonds[j].push(i); }
        }
      }
      const home = `${a},${b},${c}`;
      if (!boxes.has(home)) boxes.set(home, []);
      boxes.get(home).push(i);
    }
    return bonds;
  }

  function drawCell(viewer, cell, origin) {
    const corner = (i, j, k) => {
      const at = (axis) => origin[axis] + i * cell[axis] + j * cell[3 + axis] + k * cell[6 + axis];
      return { x: at(0), y: at(1), z: at(2) };
    };
    const edge = (start, end) => viewer.addLine({ start, end, color: CELL_COLOUR });
    for (const s of [0, 1]) for (const t of [0, 1]) {
      edge(corner(0, s, t), corner(1, s, t));
      edge(corner(s, 0, t), corner(s, 1, t));
      edge(corner(s, t, 0), corner(s, t, 1));
    }
  }

  function hasWebGL() {
    const canvas = document.createElement("canvas");
    return Boolean(canvas.getContext("webgl2") || canvas.getContext("webgl"));
  }

  function start(player) {
    const stage = player.querySelector(".stage");
    const [button, slider, speed, output] = ["button", "input", "select", "output"].map((tag) => player.querySelector(tag));
    const data = JSON.parse(player.querySelector("script").textContent);
    const xyz = decode(data), n = data.symbols.length, count = data.times.length;
    const message = stage.firstElementChild;
    message.remove();
    let viewer;
    try {
      viewer = $3Dmol.createViewer(stage, { backgroundAlpha: 0, disableFog: true, antialias: true });
      if (!viewer) throw new Error("no viewer");
    } catch (error) {
      stage.replaceChildren(message);
      player.dataset.state = "missing";
      return;
    }
    const model = viewer.addModel();
    model.addAtoms(data.symbols.map((elem, index) => ({ elem, index, serial: index, x: 0, y: 0, z: 0, bonds: [], bondOrder: [] })));
    const atoms = model.selectedAtoms({});
    const style = n > 1500
      ? { sphere: { scale: 0.28, colorscheme: { prop: "elem", map: colours() } } }
      : { stick: { radius: 0.13, colorscheme: { prop: "elem", map: colours() } }, sphere: { scale: 0.27, colorscheme: { prop: "elem", map: colours() } } };
    let bonds = null, frame = 0, position = 0, playing = false, visible = false, before = 0;

    function colours() {
      return { ...$3Dmol.elementColors.Jmol, ...COLOURS };
    }

    function show(next) {
      frame = next;
      const base = 3 * n * frame;
      if (!bonds || data.bonds === "frame") bonds = findBonds(xyz, base, data.radii);
      atoms.forEach((atom, i) => {
        [atom.x, atom.y, atom.z] = [xyz[base + 3 * i], xyz[base + 3 * i + 1], xyz[base + 3 * i + 2]];
        atom.bonds = bonds[i];
        atom.bondOrder = bonds[i].map(() => 1);
      });
      model.setStyle({}, style); // has 3Dmol build the model's shapes anew
      if (data.cells.length && (frame === 0 || data.cells.length > 1)) {
        viewer.removeAllShapes();
        drawCell(viewer, data.cells[Math.min(frame, data.cells.length - 1)], data.origin);
      }
      viewer.render();
      slider.value = frame;
      const time = data.times[frame];
      output.textContent = Math.abs(data.times[count - 1]) >= 1000 ? `${(time / 1000).toFixed(3)} ps` : `${time.toFixed(1)} fs`;
      player.dataset.frame = frame;
    }

    function tick(now) {
      if (!playing || !visible) return;
      position += (Math.min(now - before, 200) / 1000) * FRAMES_PER_SECOND * Number(speed.value);
      before = now;
      if (position >= count) position = 0;
      if (Math.floor(position) !== frame) show(Math.floor(position));
      requestAnimationFrame(tick);
    }

    function play(on) {
      playing = on && count > 1;
      player.dataset.state = playing ? "playing" : "paused";
      button.textContent = playing ? "Pause" : "Play";
      before = performance.now();
      if (playing) requestAnimationFrame(tick);
    }

    button.addEventListener("click", () => play(!playing));
    slider.addEventListener("input", () => { play(false); position = Number(slider.value); show(position); });
    player.querySelector(".controls").hidden = false;
    show(0);
    viewer.zoomTo();
    viewer.zoom(data.cells.length ? 1.1 : 1.5);
    viewer.render();
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    play(!calm);
    new IntersectionObserver((entries) => {
      visible = entries[entries.length - 1].isIntersecting;
      if (visible && playing) { before = performance.now(); requestAnimationFrame(tick); }
    }, { threshold: 0.2 }).observe(stage);
    addEventListener("resize", () => { viewer.resize(); viewer.render(); });
  }

  const able = hasWebGL();
  for (const player of document.querySelectorAll(".player")) {
    if (able) start(player);
    else player.dataset.state = "missing";
  }
})();
