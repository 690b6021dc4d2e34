// Every GPU as a card: who holds its memory, what it does, how that was in the last hour.

import { clean, el, reconcile, setAttribute, setFigure, setHidden, setLines, setText } from "./dom.js";
import { celsius, percent, size, watts } from "./format.js";
import { createPlot, updatePlot } from "./plots.js";
import { barWords, howGpu, howGpuPower, howHolding, stateWords } from "./words.js";

const FIGURES = [
  { name: "Utilisation", value: (gpu) => gpu.utilization, format: percent, figure: 0, most: () => 1 },
  { name: "Power", value: (gpu) => gpu.powerW, format: watts, how: howGpuPower, figure: 1, most: (gpu) => gpu.power_limit_w },
  { name: "Memory", value: (gpu) => gpu.used, format: size, figure: 2, most: (gpu) => gpu.memory.limit },
  { name: "Temperature", value: (gpu) => gpu.temperature_c, format: celsius },
];

export function updateGpus(parent, cycle, colours, history) {
  reconcile(parent, cycle.gpus, (gpu) => gpu.uuid, createCard, (card, gpu) =>
    updateCard(card, gpu, colours, history, cycle.interval_s),
  );
}

function createCard(gpu) {
  const card = el("article", { class: "gpu" });
  const title = el("h3", { id: `gpu-${gpu.uuid}` });
  title.append(el("span", { class: "index" }), " ", el("span", { class: "model" }));
  card.setAttribute("aria-labelledby", title.id);
  const figures = el("dl", { class: "figures" });
  for (const { name, figure } of FIGURES) {
    const cell = el("div", {}, el("dt", {}, name), el("dd", {}, el("data", { class: "figure" }), " ", el("span")));
    if (figure !== undefined) cell.append(createPlot(), el("small", { class: "hour" }));
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

function updateCard(card, gpu, colours, history, intervalS) {
  const find = (selector) => card.querySelector(selector);
  setText(find(".index"), `GPU ${gpu.index}`);
  setText(find(".model"), clean(gpu.name));
  setAttribute(find("h3"), "title", gpu.uuid);
  setText(find(".state"), stateWords(gpu));
  setAttribute(find(".state"), "class", `state ${gpu.health}`);
  setHidden(find(".amount"), gpu.memory.limit === null);
  setFigure(find(".used"), size(gpu.used), gpu.used, "all but what is free and the driver's own");
  setFigure(find(".limit"), size(gpu.memory.limit), gpu.memory.limit);
  updateBars(find(".bars"), gpu, colours);
  updateHolders(find(".holders"), gpu, colours);
  FIGURES.forEach(({ name, value, format, how, figure, most }, number) => {
    const cell = find(".figures").children[number];
    setFigure(cell.querySelector("data"), format(value(gpu)), value(gpu), how?.(gpu) ?? "as the driver reads it");
    const limit = figure === 1 && gpu.power_limit_w !== null ? `of ${watts(gpu.power_limit_w)}` : "";
    setText(cell.querySelector("dd span"), limit);
    if (figure === undefined) return;
    const plotted = { name, most: most(gpu), format, intervalS, now: value(gpu) };
    setText(cell.querySelector(".hour"), updatePlot(cell.querySelector("svg"), history.of(gpu.uuid, figure), plotted));
  });
  setLines(find("details ul"), [...howGpu(gpu), `UUID: ${clean(gpu.uuid)}`]);
}

/** The GPU's bar, and one for each of its MIG instances. */
function updateBars(parent, gpu, colours) {
  const holders = gpu.memory.limit === null ? [] : [{ ...gpu, profile: null }];
  holders.push(...gpu.instances.filter((instance) => instance.memory.limit !== null));
  reconcile(
    parent,
    holders,
    (holder) => holder.uuid,
    () => el("div", { class: "place" }, el("span", { class: "profile" }), el("div", { class: "bar", role: "img" })),
    (place, holder) => {
      const [profile, bar] = place.children;
      setHidden(profile, holder.uuid === gpu.uuid);
      setText(profile, holder.uuid === gpu.uuid ? "" : clean(holder.profile ?? "MIG"));
      setAttribute(bar, "aria-label", barWords(holder));
      updateBar(bar, holder, colours);
    },
  );
}

function updateBar(bar, { memory, holdings }, colours) {
  // What the lists counted twice is drawn once: the measured parts share what is left.
  const scale = memory.measured ? (memory.measured - memory.overcount) / memory.measured : 1;
  const segments = holdings.map((holding) => ({
    key: `${holding.method} ${holding.workload.key}`,
    bytes: holding.bytes * (holding.method === "measured" ? scale : 1),
    class: `${holding.method} ${colours.of(holding.workload.key)}`,
    how: howHolding(holding),
  }));
  for (const [name, how] of [
    ["unattributed", "in use, and nothing tells by whom"],
    ["reserved", "the driver's own"],
    ["free", "free"],
  ]) {
    segments.push({ key: name, bytes: memory[name] ?? 0, class: name, how: `${size(memory[name])}: ${how}` });
  }
  reconcile(
    bar,
    segments.filter((segment) => segment.bytes > 0),
    (segment) => segment.key,
    () => el("span"),
    (node, segment) => {
      setAttribute(node, "class", `segment ${segment.class}`);
      setAttribute(node, "title", segment.how);
      node.style.flexGrow = String(segment.bytes / memory.limit);
    },
  );
}

const surely = (confidence) => (confidence === null ? "inferred" : `inferred, ${percent(confidence)}`);

/** In words what the bar shows: nothing is to be had by hovering alone. */
function updateHolders(list, gpu, colours) {
  const lines = gpu.holdings.map((holding) => ({
    key: `${holding.method} ${holding.workload.key}`,
    swatch: `swatch ${holding.method} ${colours.of(holding.workload.key)}`,
    name: holding.name,
    bytes: holding.bytes,
    sure: holding.method === "measured" ? "" : surely(holding.confidence),
    how: howHolding(holding),
  }));
  if (gpu.memory.unattributed) {
    const how = "in use, and nothing tells by whom";
    const bytes = gpu.memory.unattributed;
    lines.push({ key: "unattributed", swatch: "swatch unattributed", name: "unattributed", bytes, sure: "", how });
  }
  reconcile(
    list,
    lines,
    (line) => line.key,
    () => el("li", {}, el("span"), el("span", { class: "name" }), el("data"), el("span", { class: "sure" })),
    (item, line) => {
      const [swatch, name, bytes, sure] = item.children;
      setAttribute(item, "title", line.how);
      setAttribute(swatch, "class", line.swatch);
      setText(name, line.name);
      setFigure(bytes, size(line.bytes), line.bytes);
      setText(sure, line.sure);
    },
  );
}
