// Every GPU as a card: its memory by holder, its figures, and their last hour.

import { el, markClass, reconcile, setAttribute, setCell, setHidden, setLines, setText } from "./dom.js";
import { createPlot, updatePlot } from "./plots.js";

export function updateGpus(parent, view, history) {
  const names = Object.fromEntries(view.gpu_columns.map((column) => [column.key, column.name]));
  reconcile(
    parent, view.gpus, (gpu) => gpu.uuid, (gpu) => createCard(gpu, names, view.words),
    (card, gpu) => updateCard(card, gpu, history, view),
  );
}

function createCard(gpu, names, words) {
  const card = el("article", { class: "gpu" });
  const title = el("h3", { id: `gpu-${gpu.uuid}` });
  title.append(el("span", { class: "index" }), " ", el("span", { class: "model" }));
  card.setAttribute("aria-labelledby", title.id);
  const figures = el("dl", { class: "figures" });
  for (const { column, plot } of gpu.figures) {
    const cell = el("div", {}, el("dt", {}, names[column]), el("dd", {}, el("data", { class: "figure" }), " ", el("span")));
    if (plot !== null) cell.append(createPlot(), el("small", { class: "hour" }));
    figures.append(cell);
  }
  card.append(
    el("header", {}, title, el("span", { class: "state" })),
    el("p", { class: "amount" }, el("b"), " ", el("span")),
    el("div", { class: "bars" }),
    el("ul", { class: "holders" }),
    figures,
    el("details", {}, el("summary", {}, words.obtained), el("ul")),
  );
  return card;
}

function updateCard(card, gpu, history, view) {
  const find = (selector) => card.querySelector(selector);
  const cells = Object.fromEntries(view.gpu_columns.map((column, at) => [column.key, gpu.bars[0].cells[at]]));
  setText(find(".index"), gpu.title);
  setText(find(".model"), cells.name.text);
  setAttribute(find("h3"), "title", gpu.uuid);
  setText(find(".state"), cells.state.reason);
  setAttribute(find(".state"), "class", `state tone-${gpu.tone}`);
  setHidden(find(".amount"), gpu.used === "");
  setText(find(".amount b"), gpu.used);
  setText(find(".amount span"), gpu.of_all);
  updateBars(find(".bars"), gpu);
  updateHolders(find(".holders"), gpu.holders);
  gpu.figures.forEach(({ column, limit, plot }, number) => {
    const node = find(".figures").children[number];
    setCell(node.querySelector("data"), cells[column]);
    setText(node.querySelector("dd span"), limit);
    if (plot === null) return;
    updatePlot(node.querySelector("svg"), history.of(gpu.uuid, plot.figure), plot, view);
    setText(node.querySelector(".hour"), plot.caption);
  });
  setLines(find("details ul"), gpu.reasons);
}

/** The GPU's bar, and one for each of its MIG instances. */
function updateBars(parent, gpu) {
  reconcile(
    parent,
    gpu.bars.filter((bar) => bar.segments.length > 0),
    (bar) => bar.uuid,
    () => el("div", { class: "place" }, el("span", { class: "profile" }), el("div", { class: "bar", role: "img" })),
    (place, { profile, label, segments }) => {
      const [name, bar] = place.children;
      setHidden(name, profile === null);
      setText(name, profile ?? "");
      setAttribute(bar, "aria-label", label);
      updateSegments(bar, segments);
    },
  );
}

function updateSegments(bar, segments) {
  const total = segments.reduce((sum, segment) => sum + segment.bytes, 0);
  reconcile(
    bar,
    segments,
    (segment) => segment.key,
    () => el("span"),
    (node, segment) => {
      setAttribute(node, "class", `segment ${markClass(segment)}`);
      setAttribute(node, "title", segment.reason);
      node.style.flexGrow = String(segment.bytes / total);
    },
  );
}

function updateHolders(list, holders) {
  reconcile(
    list,
    holders,
    (holder) => holder.key,
    () => el("li", {}, el("span"), el("span", { class: "name" }), el("data"), el("span", { class: "sure" })),
    (item, holder) => {
      const [swatch, name, memory, confidence] = item.children;
      setAttribute(item, "title", holder.memory.reason);
      setAttribute(swatch, "class", `swatch ${markClass(holder)}`);
      setText(name, holder.name);
      setCell(memory, holder.memory);
      setText(confidence, holder.confidence);
    },
  );
}
