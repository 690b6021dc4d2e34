// Plots of the last hour: a line, with gaps where a figure is unknown.

import { setAttribute, setText, svg } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 40;

/** The hour that the agent sent at first, and the slots since, by GPU. */
export class History {
  #at = [];
  #gpus = new Map();

  /** Adds slots, and drops those of more than `spanS` ago. A slot that is sent again replaces the earlier one. */
  add({ at, gpus }, spanS) {
    at.forEach((time, number) => {
      let place = this.#at.indexOf(time);
      if (place < 0) {
        if (this.#at.length && time < this.#at.at(-1)) this.clear(); // a clock was set back, or this is another agent
        place = this.#at.push(time) - 1;
      }
      for (const [uuid, points] of Object.entries(gpus)) {
        if (!this.#gpus.has(uuid)) this.#gpus.set(uuid, []);
        this.#gpus.get(uuid)[place] = points[number];
      }
    });
    while (this.#at.length && this.#at[0] < this.#at.at(-1) - spanS) {
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

  /** One figure of a GPU by slot: mean, lowest and highest sample; null where it is unknown. */
  of(uuid, figure) {
    const points = this.#gpus.get(uuid) ?? [];
    return this.#at.map((time, place) => {
      const [mean, low, high] = points[place]?.[figure] ?? [null, null, null];
      return { time, mean, low, high };
    });
  }
}

export function createPlot() {
  const viewBox = `0 0 ${WIDTH} ${HEIGHT}`;
  const plot = svg("svg", { class: "plot", viewBox, preserveAspectRatio: "none", role: "img" });
  plot.append(
    svg("title"), svg("path", { class: "area" }), svg("path", { class: "range" }), svg("path", { class: "line" }),
  );
  return plot;
}

/**
 * Draws a figure (`plot` of a GPU) over `spanS`: a line of means, with gaps where points are more than `gapS` apart, and
 * behind it the range from lowest to highest sample.
 */
export function updatePlot(node, points, { top, label }, { plot_span_s: spanS, plot_gap_s: gapS }) {
  const end = points.length ? points.at(-1).time : 0;
  const x = (time) => (WIDTH * (1 - (end - time) / spanS)).toFixed(1);
  const y = (value) => (HEIGHT - 1 - (HEIGHT - 2) * Math.min(value / top, 1)).toFixed(1);
  const lines = [];
  let before = null;
  for (const { time, mean, low, high } of points) {
    if (mean === null) {
      before = null;
      continue;
    }
    if (before === null || time - before > gapS) lines.push([]);
    lines.at(-1).push({ at: x(time), mean: y(mean), low: y(low), high: y(high) });
    before = time;
  }
  const along = (run, which) => run.map((point) => `${point.at},${point[which]}`).join("L");
  const draw = (path, of) => setAttribute(path, "d", lines.map(of).join(""));
  const [title, area, range, line] = node.children;
  // A single point is a line of its own width.
  draw(line, (run) => `M${along(run, "mean")}${run.length > 1 ? "" : "h-2"}`);
  draw(range, (run) => `M${along(run, "high")}L${along(run.toReversed(), "low")}Z`);
  draw(area, (run) => `M${run[0].at},${HEIGHT}L${along(run, "mean")}L${run.at(-1).at},${HEIGHT}Z`);
  setAttribute(node, "aria-label", label);
  setText(title, label);
}
