// Who uses the GPUs: draws every cycle that the agent sends.

import { Colours } from "./colours.js";
import { byId, clean, el, reconcile, setAttribute, setFigure, setHidden, setLines, setText } from "./dom.js";
import { percent, plural, size, sumKnown, timeOfDay, watts } from "./format.js";
import { updateGpus } from "./gpus.js";
import { follow } from "./live.js";
import { combine } from "./model.js";
import { History } from "./plots.js";
import { Workloads } from "./workloads.js";

const BACK_MS = 10_000; // how long it is said that the agent is back

const colours = new Colours();
const history = new History();
const announce = (words) => setText(byId("said"), words); // to who listens, and only what somebody waits for
const workloads = new Workloads(colours, announce);
let shown = null;
let newest = null; // and its id: the same as what is shown, unless somebody holds the page still
let held = false;
let lost = false;
let title = document.title; // of who is here; what became of the agent stands before it
let backTimer = null;

function take(document_, beside, id) {
  history.add(beside.history);
  newest = [combine(document_, beside), id];
  if (!held) show(...newest);
}

function show(cycle, id) {
  colours.update(cycle.workloads);
  showHead(cycle);
  showTroubles(cycle);
  for (const section of ["overview", "devices", "workloads"]) setHidden(byId(section), false);
  setHidden(byId("devices"), cycle.pod !== null);
  setHidden(byId("overview"), cycle.pod !== null);
  showTotals(cycle);
  updateGpus(byId("gpus"), cycle, colours, history);
  setHidden(byId("no-gpus"), cycle.gpus.length > 0);
  setText(byId("no-gpus"), "No GPU could be read.");
  workloads.update(cycle);
  if (shown === null) say(null);
  shown = cycle;
  setAttribute(byId("main"), "data-cycle", id);
}

function showHead(cycle) {
  const where = [cycle.host, cycle.pod && `pod ${cycle.pod}`, cycle.driver && `driver ${cycle.driver}`];
  setText(byId("where"), where.filter(Boolean).map(clean).join(" · "));
  setText(byId("updated"), `as of ${timeOfDay(cycle.at)}`);
  setHidden(byId("hold"), false);
  setHidden(byId("simulated"), cycle.simulated === null);
  setText(byId("simulated"), `Simulated host: no figure here is of a real GPU (${clean(cycle.simulated ?? "")}).`);
  setText(byId("version"), `otel-gpu ${cycle.version}`);
  if (cycle.host) title = `${clean(cycle.host)}: who uses the GPU`;
  showTitle();
}

/** A tab behind others is seen by its title alone. */
function showTitle() {
  const words = lost ? `(lost) ${title}` : title;
  if (document.title !== words) document.title = words;
}

function showTroubles(cycle) {
  const troubled = cycle.sources.filter((source) => source.state !== "ok");
  setHidden(byId("trouble"), troubled.length === 0);
  setLines(byId("troubles"), troubled.map((each) => `${clean(each.name)}: ${each.state}: ${clean(each.reason ?? "")}`));
}

/** The whole host in five figures; of how many GPUs, where not all give them. */
function showTotals({ gpus, workloads: holders, all_told }) {
  const limit = sumKnown(gpus.map((gpu) => gpu.memory.limit));
  const used = sumKnown(gpus.map((gpu) => gpu.used));
  const unknown = sumKnown(gpus.map((gpu) => gpu.memory.unattributed));
  const power = sumKnown(gpus.map((gpu) => gpu.powerW));
  const answering = gpus.filter((gpu) => gpu.health === "ok" || gpu.health === "degraded").length;
  const of = (value) => {
    const told = gpus.filter((gpu) => value(gpu) !== null).length;
    return told && told < gpus.length ? `of ${told} of ${plural(gpus.length, "GPU")}` : null;
  };
  const attributed = used ? (used - unknown) / used : null;
  const totals = [
    {
      name: "GPUs", value: gpus.length, text: String(gpus.length), how: "all that the driver lists, or listed before",
      more: answering < gpus.length ? `${gpus.length - answering} without figures` : "",
    },
    {
      name: "Memory in use", value: used, text: size(used), how: "all but what is free and the driver's own, summed over GPUs",
      more: used === null ? "" : listed(`of ${size(limit)}`, of((gpu) => gpu.used)),
    },
    {
      name: "Attributed", value: attributed, text: percent(attributed), more: "of the memory in use",
      how: "the part that somebody was measured or inferred to hold; the rest is unattributed",
    },
    {
      name: "Power", value: power, text: watts(power), more: listed(of((gpu) => gpu.powerW)),
      how: "summed over GPUs: of each the mean since the last sample",
    },
    { name: "Held while idle", ...heldIdle(holders, all_told) },
  ];
  reconcile(
    byId("totals"), totals, ({ name }) => name,
    ({ name }) => el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, el("data")), " ", el("small"))),
    (node, { value, text, more, how }) => {
      setFigure(node.querySelector("data"), text, value, how);
      setText(node.querySelector("small"), more);
    },
  );
}

const listed = (...words) => words.filter(Boolean).join(", ");

/** The memory of those who are found idle and, beside it, of those of whom that is not decided. */
function heldIdle(holders, allTold) {
  // Who was given a GPU and is not on it holds nothing: that says nothing of whether it is known who works.
  const here = holders.filter((workload) => !workload.ended && workload.state !== "allocated");
  const idle = here.filter((workload) => workload.state === "idle");
  const open = here.filter((workload) => workload.state === "unknown" || workload.state === null);
  const decided = here.length ? open.length < here.length : allTold;
  const held = (workloads) => sumKnown(workloads.map((workload) => workload.memory));
  const value = decided ? (held(idle) ?? 0) : null;
  return {
    value,
    text: size(value),
    more: listed(idle.length && `by ${plural(idle.length, "workload")}`, open.length && `${size(held(open))} undecided`),
    how: "memory of those who hold some and show no work; of those undecided nobody can tell, or not yet",
  };
}

/** Whoever reads a figure must be able to stop it from changing (WCAG 2.2, 2.2.2). */
function holdOrGoOn() {
  held = !held;
  setAttribute(byId("hold"), "aria-pressed", String(held));
  if (held) setText(byId("updated"), `held still as of ${timeOfDay(shown.at)}`);
  else show(...newest);
}

/** Says something about the agent, once; nothing about what it tells. */
function say(words, kind = "lost") {
  clearTimeout(backTimer);
  const link = byId("link");
  setAttribute(link, "class", `notice ${kind}`);
  setHidden(link, words === null);
  setText(link, words ?? "");
  announce(words ?? "");
}

function lose(why) {
  old();
  lost = true;
  showTitle();
  const gone = why === "silence" ? "The agent has fallen silent." : "Lost the agent.";
  const words = shown === null ? "The agent does not answer." : `${gone} What you see is of ${timeOfDay(shown.at)}.`;
  say(`${words} Trying again …`);
}

/** What is shown is of before, until a cycle comes; nobody need be told for that moment. */
const old = () => document.body.classList.add("stale");
const current = () => document.body.classList.remove("stale");

function back() {
  current();
  lost = false;
  showTitle();
  say("The agent is back.", "back");
  backTimer = setTimeout(() => say(null), BACK_MS);
}

byId("hold").addEventListener("click", holdOrGoOn);
say("Waiting for the first sample …", "back");
follow("/api/events", { onCycle: take, onOld: old, onCurrent: current, onLost: lose, onBack: back });
