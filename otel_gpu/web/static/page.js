// Who uses the GPUs: draws every cycle that the agent sends.

import { Colours } from "./colours.js";
import { byId, clean, el, reconcile, setAttribute, setHidden, setLines, setText } from "./dom.js";
import { percent, plural, size, sumKnown, timeOfDay, UNKNOWN, watts } from "./format.js";
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
let backTimer = null;

function show(document_, beside, id) {
  const cycle = combine(document_, beside);
  history.add(beside.history);
  colours.update(cycle.workloads.toSorted((a, b) => (b.memory ?? -1) - (a.memory ?? -1)));
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
  setHidden(byId("simulated"), cycle.simulated === null);
  setText(byId("simulated"), `Simulated host: no figure here is of a real GPU (${clean(cycle.simulated ?? "")}).`);
  setText(byId("version"), `otel-gpu ${cycle.version}`);
  const title = cycle.host ? `${clean(cycle.host)}: who uses the GPU` : "otel-gpu: who uses the GPU";
  if (document.title !== title) document.title = title;
}

function showTroubles(cycle) {
  const troubled = cycle.sources.filter((source) => source.state !== "ok");
  setHidden(byId("trouble"), troubled.length === 0);
  setLines(byId("troubles"), troubled.map((each) => `${clean(each.name)}: ${each.state}: ${clean(each.reason ?? "")}`));
}

/** The whole host in five figures. */
function showTotals({ gpus, workloads: holders, all_told }) {
  const limit = sumKnown(gpus.map((gpu) => gpu.memory.limit));
  const used = sumKnown(gpus.map((gpu) => gpu.used));
  const unknown = sumKnown(gpus.map((gpu) => gpu.memory.unattributed));
  const power = sumKnown(gpus.map((gpu) => gpu.power_w));
  const idle = holders.filter((workload) => workload.state === "idle");
  const decided = holders.length ? holders.some((workload) => workload.state !== "unknown") : all_told;
  const held = sumKnown(idle.map((workload) => workload.memory));
  const answering = gpus.filter((gpu) => gpu.health === "ok" || gpu.health === "degraded").length;
  const totals = [
    ["GPUs", String(gpus.length), answering < gpus.length ? `${gpus.length - answering} without figures` : ""],
    ["Memory in use", size(used), used === null ? "" : `of ${size(limit)}`],
    ["Attributed", used ? percent((used - unknown) / used) : UNKNOWN, "of the memory in use"],
    ["Power", watts(power), ""],
    ["Held while idle", decided ? size(held ?? 0) : UNKNOWN, held === null ? "" : `by ${plural(idle.length, "workload")}`],
  ];
  reconcile(
    byId("totals"), totals, ([name]) => name,
    ([name]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("b"), " ", el("small"))),
    (node, [, figure, more]) => {
      setText(node.querySelector("b"), figure);
      setText(node.querySelector("small"), more);
    },
  );
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
  document.body.classList.add("stale");
  const since = shown === null ? "" : ` What you see is of ${timeOfDay(shown.at)}.`;
  const gone = shown === null ? "The agent does not answer." : "Lost the agent.";
  say(`${why === "silence" ? "The agent has fallen silent." : gone}${since} Trying again …`);
}

function back() {
  document.body.classList.remove("stale");
  say("The agent is back.", "back");
  backTimer = setTimeout(() => say(null), BACK_MS);
}

say("Waiting for the first sample …", "back");
follow("/api/events", { onCycle: show, onLost: lose, onBack: back });
