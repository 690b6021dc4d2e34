// The last hour, small: one line, gaps where nothing was known.

import { setAttribute, setText, svg } from "./dom.js";

const HOUR_S = 3600;
const SLOT_S = 15;
const WIDTH = 240;
const HEIGHT = 40;

/** What the agent remembers and what came since, by GPU. */
export class History {
  #at = [];
  #gpus = new Map();

  /** Take in points; those that are known already count as they are now. */
  add({ at, gpus }) {
    at.forEach((time, number) => {
      let place = this.#at.indexOf(time);
      if (place < 0) {
        if (this.#at.length && time < this.#at.at(-1)) this.clear(); // a clock was set back, or it is another agent
        place = this.#at.push(time) - 1;
      }
      for (const [uuid, points] of Object.entries(gpus)) {
        if (!this.#gpus.has(uuid)) this.#gpus.set(uuid, []);
        this.#gpus.get(uuid)[place] = points[number];
      }
    });
    while (this.#at.length && this.#at[0] < this.#at.at(-1) - HOUR_S) {
      this.#at.shift();
      for (const [uuid, points] of this.#gpus) {
        points.shift();
        if (!points.length) this.#gpus.delete(uuid);
      }
    }
  }

  clear() {
    this.#at = [];
    this.#gpus.clear();
  }

  /** Times and values of one figure (0 utilisation, 1 watts, 2 bytes) of a GPU; null where it was not known. */
  of(uuid, figure) {
    const points = this.#gpus.get(uuid) ?? [];
    return this.#at.map((time, place) => ({ time, value: points[place]?.[figure] ?? null }));
  }
}

export function createPlot() {
  const viewBox = `0 0 ${WIDTH} ${HEIGHT}`;
  const plot = svg("svg", { class: "plot", viewBox, preserveAspectRatio: "none", role: "img" });
  plot.append(svg("title"), svg("path", { class: "area" }), svg("path", { class: "line" }));
  return plot;
}

/** Draws it, and returns what it is. `most` is the top of the plot; without one it is the highest value. */
export function updatePlot(plot, points, { name, most, format, intervalS }) {
  const known = points.filter((point) => point.value !== null).map((point) => point.value);
  const top = most || Math.max(...known, 0) || 1;
  const end = points.length ? points.at(-1).time : 0;
  const x = (time) => (WIDTH * (1 - (end - time) / HOUR_S)).toFixed(1);
  const y = (value) => (HEIGHT - 1 - (HEIGHT - 2) * Math.min(value / top, 1)).toFixed(1);
  const gap = 2.5 * Math.max(intervalS, SLOT_S);
  const lines = [];
  let before = null;
  for (const { time, value } of points) {
    if (value === null) {
      before = null;
      continue;
    }
    if (before === null || time - before > gap) lines.push([]);
    lines.at(-1).push([x(time), y(value)]);
    before = time;
  }
  const [title, area, line] = plot.children;
  // A single point is a line of its own width.
  setAttribute(line, "d", lines.map((run) => `M${run.join("L")}${run.length > 1 ? "" : "h-2"}`).join(""));
  setAttribute(
    area,
    "d",
    lines.map((run) => `M${run[0][0]},${HEIGHT}L${run.join("L")}L${run.at(-1)[0]},${HEIGHT}Z`).join(""),
  );
  const nothing = points.length ? "not known" : "no data yet";
  const words = known.length
    ? `lowest ${format(Math.min(...known))}, highest ${format(Math.max(...known))}, last ${format(known.at(-1))}`
    : nothing;
  setAttribute(plot, "aria-label", `${name} in the last hour: ${words}`);
  setText(title, `${name} in the last hour: ${words}`);
  return known.length ? "last hour" : `last hour: ${nothing}`;
}
