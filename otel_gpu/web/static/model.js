// One cycle as the page shows it: the agent's document, and what the agent tells beside it, put together.

import { clean } from "./dom.js";
import { sumKnown } from "./format.js";
import { byPlace, placeOf, placesOf, rankOfAll } from "./places.js";

const METHODS = ["measured", "estimated", "inferred"];

/** All of a cycle. Workloads and processes of `beside` stand in the document's order. */
export function combine(document, beside) {
  const windowS = beside.window_s;
  const workloads = document.workloads.map((workload, at) => workloadOf(workload, beside.workloads[at], windowS));
  const byKey = new Map(workloads.map((workload) => [workload.key, workload]));
  document.processes.forEach((process, at) => {
    const more = beside.processes[at];
    const workload = byKey.get(keyOf(more.kind, process.workload, more));
    workload?.processes.push(processOf(process, more, windowS));
  });
  const gpus = document.gpus.map((gpu, at) => gpuOf(gpu, beside.gpus[at], workloads, windowS));
  const sources = document.sources.map((source, at) => ({ ...source, state: beside.sources[at] }));
  return { ...beside, gpus, workloads, sources };
}

const keyOf = (kind, id, beside) => `${kind} ${beside.naming} ${beside.outer ?? ""} ${id}`;

function workloadOf(workload, beside, windowS) {
  const parts = workload.gpus
    .map((part, at) => ({ ...beside.gpus[at], now: part, uuid: part.uuid, mig: part.mig }))
    .sort(byPlace);
  const measured = sumKnown(parts.map((part) => part.now.memory.measured));
  const inferred = sumKnown(parts.map((part) => part.now.memory.inferred));
  const lately = byMethod(parts.map((part) => part.now.energy_mj));
  const sure = parts.filter((part) => part.now.memory.inferred).map((part) => part.now.memory.confidence);
  return {
    ...workload,
    key: keyOf(workload.kind, workload.id, beside),
    title: titleOf(workload),
    isHash: isHash(workload),
    parts,
    places: placesOf(parts),
    placeRank: rankOfAll(parts),
    measured,
    inferred,
    memory: sumKnown([measured, inferred]),
    confidence: sure.length && !sure.includes(null) ? Math.min(...sure) : null,
    sm: sumKnown(parts.map((part) => part.now.utilization)),
    lately,
    powerW: powerOf(lately.total, windowS),
    soFar: byMethod(parts.map((part) => part.energy_mj)),
    idleS: sumKnown(parts.map((part) => part.idle_s)),
    idleParts: parts.filter((part) => part.idle_s !== null).length,
    idleMj: sumKnown(parts.map((part) => part.idle_mj)),
    since: Math.min(...parts.map((part) => part.since ?? Infinity)),
    cost: sumKnown(parts.map((part) => part.cost)),
    idleCost: sumKnown(parts.map((part) => part.idle_cost)),
    ended: parts.every((part) => !part.active),
    ...stateOf(parts),
    processes: [],
  };
}

const isHash = (workload) => workload.name === workload.id && workload.name.length === 64;

/** As `docker ps` shows an id that nobody has a name for. */
const titleOf = (workload) => clean(isHash(workload) ? workload.name.slice(0, 12) : workload.name);

function byMethod(energies) {
  const found = Object.fromEntries(METHODS.map((method) => [method, sumKnown(energies.map((each) => each?.[method]))]));
  return { ...found, total: sumKnown(Object.values(found)) };
}

const powerOf = (millijoules, windowS) => (millijoules === null || !windowS ? null : millijoules / 1000 / windowS);

/** Busy if it is anywhere; idle only if nowhere anything else may be. */
function stateOf(parts) {
  const here = parts.filter((part) => part.active);
  const states = here.map((part) => part.now.state);
  const state = ["busy", "unknown", "idle", "allocated"].find((each) => states.includes(each)) ?? null;
  const spans = here.filter((part) => part.now.state === "idle").map((part) => part.now.idle_seconds);
  return { state, idleFor: state === "idle" && !spans.includes(null) ? Math.min(...spans) : null };
}

function processOf(process, beside, windowS) {
  return {
    ...process,
    ...beside,
    key: `${process.pid} ${process.start_time} ${process.gpu} ${beside.mig}`,
    title: process.name === null ? null : clean(process.name),
    place: placeOf(beside),
    lately: byMethod([beside.lately_mj]),
    powerW: powerOf(process.energy_mj, windowS),
    soFar: byMethod([beside.energy_mj]),
    idleFor: process.state === "idle" ? process.idle_seconds : null,
  };
}

function gpuOf(gpu, beside, workloads, windowS) {
  const holders = workloads.flatMap((workload) =>
    workload.parts.filter((part) => part.uuid === gpu.uuid && part.active).map((part) => ({ workload, part })),
  );
  const names = namesOf(holders.map(({ workload }) => workload));
  return {
    ...gpu,
    ...beside,
    powerW: powerOf(gpu.energy.delta_mj, windowS) ?? gpu.power_w, // the workloads' are parts of the mean, not of now's
    used: usedOf(gpu.memory),
    holdings: holdingsOf(holders, names),
    instances: (gpu.mig ?? []).map((instance) => ({
      ...instance,
      used: usedOf(instance.memory),
      holdings: holdingsOf(holders.filter(({ part }) => part.mig === instance.uuid), names),
    })),
  };
}

const usedOf = (memory) => (memory.limit === null ? null : memory.limit - memory.free - (memory.reserved ?? 0));

/** What those who stand together are called: by title and, where titles repeat, by what tells them apart. */
function namesOf(workloads) {
  const everybody = new Set(workloads); // somebody may be on several instances
  const namesakes = new Map();
  for (const { title } of everybody) namesakes.set(title, (namesakes.get(title) ?? 0) + 1);
  const nameOf = (workload) =>
    namesakes.get(workload.title) > 1 ? `${workload.title} (${ownOf(workload)})` : workload.title;
  return new Map([...everybody].map((workload) => [workload.key, nameOf(workload)]));
}

export const podOf = ({ namespace, pod }) => (pod === null ? null : clean([namespace, pod].filter(Boolean).join("/")));

const ownOf = (workload) => podOf(workload) ?? clean(workload.id.slice(0, 12));

/** Who holds how much, by how that is known; the largest first, the measured before the inferred. */
function holdingsOf(holders, names) {
  return ["measured", "inferred"].flatMap((method) =>
    holders
      .map(({ workload, part }) => ({
        workload,
        name: names.get(workload.key),
        method,
        bytes: part.now.memory[method],
        confidence: part.now.memory.confidence,
      }))
      .filter((holding) => holding.bytes > 0)
      .sort((one, other) => other.bytes - one.bytes || (one.workload.key < other.workload.key ? -1 : 1)),
  );
}
