// How each figure was obtained, in words.

import { clean } from "./dom.js";
import { joules, kilowattHours, moment, money, percent, size, span, watts } from "./format.js";

const sureness = (confidence) => (confidence === null ? "" : `, ${percent(confidence)} sure`);

export function howHolding({ name, method, bytes, confidence }) {
  const who = `${name}: ${size(bytes)}`;
  return method === "measured"
    ? `${who} measured: the driver's process lists say so`
    : `${who} inferred${sureness(confidence)}: no list has it, and evidence points here`;
}

export function howMemory(workload) {
  const said = [];
  if (workload.measured !== null) said.push(`${size(workload.measured)} measured, by the driver's process lists`);
  if (workload.inferred) {
    const sure = sureness(workload.confidence);
    said.push(`${size(workload.inferred)} inferred${sure}, by open devices, grants and growth`);
  }
  return said.length ? said.join("; ") : "not known: the driver gives no figure";
}

export function howSm(sm, parts = 1) {
  if (sm === null) return "not known: the driver gives no utilisation of processes here";
  const summed = parts > 1 ? `, summed over ${parts} places` : "";
  return `share of the SMs${summed}: mean of the driver's samples in the last window`;
}

const BY_METHOD = {
  measured: "measured (alone on the GPU)",
  estimated: "estimated (shared with others)",
  inferred: "inferred (hidden, and the only one it can be)",
};

const methods = (energy) =>
  Object.keys(BY_METHOD)
    .filter((method) => energy[method])
    .map((method) => `${joules(energy[method])} ${BY_METHOD[method]}`)
    .join("; ");

export function howPower(workload, windowS) {
  if (workload.powerW === null) return "not known: nobody counts energy here, or this is the first sample";
  return `mean of the last ${windowS.toFixed(1)} s: ${methods(workload.lately) || "no energy"}`;
}

export function howEnergy({ soFar, since }) {
  if (soFar.total === null) return "not known: nobody counts energy here";
  return `since ${moment(since)}: ${methods(soFar) || "none yet"}; ${kilowattHours(soFar.total)} in all`;
}

export function howIdle(workload) {
  if (workload.idleS === null) return "not known: nobody can tell who works here";
  if (!workload.idleS && workload.idleFor === null) return `not found idle since ${moment(workload.since)}`;
  const summed = workload.idleParts > 1 ? ` of GPU time, summed over ${workload.idleParts} places,` : "";
  const drawn = workload.soFar.total === null ? "" : `, which took ${joules(workload.idleMj)}`;
  const lately = workload.idleFor === null ? "" : `; idle for ${span(workload.idleFor)} now`;
  return `held memory and did no work for ${span(workload.idleS)}${summed} since ${moment(workload.since)}${drawn}${lately}`;
}

export function howCost(workload, currency) {
  if (workload.cost === null) return "not known: no price for this GPU, or whether it works is not decided yet";
  const idle =
    workload.idleCost === null
      ? "how much of it while idle is not known"
      : `${money(workload.idleCost, currency)} of it while idle`;
  return `so far, at the prices configured; ${idle}`;
}

const STATES = {
  busy: "showed work in the last samples",
  idle: "holds memory and shows no work",
  allocated: "was given a GPU and has no process on it",
  unknown: "whether it works is not decided yet, or nobody can tell",
};

export const howState = (state) => STATES[state] ?? "not known";

/** A figure of energy with the sign of how it was found; none before what was measured, or is not known. */
export const signed = (text, energy) => (energy.inferred ? `~ ${text}` : energy.estimated ? `≈ ${text}` : text);

export function howGpu(gpu) {
  const { memory, basis } = gpu;
  const said = [];
  if (memory.limit !== null) {
    const reserved = memory.reserved === null ? "" : ` + ${size(memory.reserved)} the driver's own`;
    const overcount = memory.overcount ? ` − ${size(memory.overcount)} counted twice by the lists` : "";
    said.push(
      `Memory: ${size(memory.limit)} = ${size(memory.measured)} measured${overcount}` +
        ` + ${size(memory.inferred)} inferred + ${size(memory.unattributed)} unattributed${reserved}` +
        ` + ${size(memory.free)} free, to the byte.`,
    );
    if (memory.reserved === null) said.push("This driver does not tell its own memory apart: it counts as in use.");
  } else {
    said.push("Memory: not known; the driver gives no figure.");
  }
  said.push("Utilisation and temperature: as the driver reads them.", `Power: ${howGpuPower(gpu)}.`);
  if (gpu.energy_mj !== null) {
    const { attributed, idle, unattributed } = gpu.energy_mj;
    said.push(
      `Energy so far: ${joules(attributed + idle + unattributed)} = ${joules(attributed)} given to workloads` +
        ` + ${joules(idle)} with nobody on it + ${joules(unattributed)} unattributed.`,
    );
  }
  if (basis !== null) {
    const source = basis.source === "counter" ? "the GPU's own counter" : "power, added up";
    said.push(
      `Energy is ${source}; divided by policy ${clean(basis.policy)}, model ${clean(basis.model)}.` +
        ` Without anybody ${watts(basis.idle_w)} (${clean(basis.idle_origin)}),` +
        ` held ${watts(basis.held_w)} (${clean(basis.held_origin)}).`,
    );
  }
  return said;
}

/** Of the same window as that of the workloads, so that theirs add up to it. */
export function howGpuPower({ energy, power_w }) {
  if (energy.delta_mj === null) return power_w === null ? "not known" : "as the driver reads it";
  return `the mean since the last sample${power_w === null ? "" : `; the driver reads ${watts(power_w)} now`}`;
}

export function barWords(holder) {
  const { memory, holdings } = holder;
  const parts = holdings.map((each) => `${each.name} ${size(each.bytes)} ${each.method}`);
  for (const [name, bytes] of [
    ["unattributed", memory.unattributed],
    ["the driver's own", memory.reserved],
    ["free", memory.free],
  ]) {
    if (bytes) parts.push(`${size(bytes)} ${name}`);
  }
  return `Memory of ${size(memory.limit)}: ${parts.join(", ")}`;
}

export const stateWords = (gpu) => (gpu.reason === null ? gpu.health : `${gpu.health}: ${clean(gpu.reason)}`);
