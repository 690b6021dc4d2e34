// Every GPU as a card: its memory by holder, its figures, and their last hour.

import { el, markClass, reconcile, setAttribute, setCell, setHidden, setLines, setText } from "./dom.js";
import { createPlot, updatePlot } from "./plots.js";

const FIGURES = ["utilization", "power", "memory", "temperature"];

export function updateGpus(parent, view, history) {
  reconcile(parent, view.gpus, (gpu) => gpu.uuid, createCard, (card, gpu) =>
    updateCard(card, gpu, history, view),
  );
}

function createCard(gpu) {
  const card = el("article", { class: "gpu" });
  const title = el("h3", { id: `gpu-${gpu.uuid}` });
  title.append(el("span", { class: "index" }), " ", el("span", { class: "model" }));
  card.setAttribute("aria-labelledby", title.id);
  const figures = el("dl", { class: "figures" });
  for (const key of FIGURES) {
    const { name, plot } = gpu[key];
    const cell = el("div", {}, el("dt", {}, name), el("dd", {}, el("data", { class: "figure" }), " ", el("span")));
    if (plot !== null) cell.append(createPlot(), el("small", { class: "hour" }));
    figures.append(cell);
  }
  card.append(
    el("header", {}, title, el("span", { class: "state" })),
    el("p", { class: "amount" }, el("data", { class: "used" }), " of ", el("data", { class: "limit" }), " in use"),
    el("div", { class: "bars" }),
    el("ul", { class: "holders" }),
    figures,
    el("details", {}, el("summary", {}, "How these figures were obtained"), el("ul")),
  );
  return card;
}

function updateCard(card, gpu, history, view) {
  const find = (selector) => card.querySelector(selector);
  setText(find(".index"), `GPU ${gpu.number}`);
  setText(find(".model"), gpu.name);
  setAttribute(find("h3"), "title", gpu.uuid);
  setText(find(".state"), gpu.state);
  setAttribute(find(".state"), "class", `state tone-${gpu.tone}`);
  setHidden(find(".amount"), gpu.limit.value === null);
  setCell(find(".used"), gpu.used);
  setCell(find(".limit"), gpu.limit);
  updateBars(find(".bars"), gpu);
  updateHolders(find(".holders"), gpu.holders);
  FIGURES.forEach((key, number) => {
    const { cell, limit, plot } = gpu[key];
    const node = find(".figures").children[number];
    setCell(node.querySelector("data"), cell);
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
