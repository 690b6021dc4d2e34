// The columns of workloads and of processes: what they say, and where it comes from.

import { gpuSpan, joules, money, percent, size, span, UNKNOWN, watts } from "./format.js";
import { howCost, howEnergy, howIdle, howMemory, howPower, howSm, howState, signed } from "./words.js";

export const stateText = ({ state, idleFor, ended }) =>
  ended ? "ended" : state === null ? UNKNOWN : idleFor === null ? state : `${state} ${span(idleFor)}`;

const WHAT = {
  places: "The GPUs it is on, by index; a MIG instance by its profile",
  memory: "GPU memory it holds: by the driver's process lists or, where they do not have it, inferred",
  sm: "Share of a GPU's SMs that work for it, in the last window; summed over GPUs",
  power: "Its part of the GPU's power, mean of the last window",
  energy: "Its part of the GPU's energy so far",
  state: "Busy, idle and for how long, allocated (granted, and no process on it), or unknown, in the last sample",
};

/** `value` stands behind the text and is sorted by, unless there is a `rank`; `how` says where it comes from. */
export const COLUMNS = [
  {
    key: "title", name: "Workload", what: "Container, job, unit or the host itself; opened, its processes",
    value: (row) => row.title.toLowerCase(),
  },
  {
    key: "places", name: "GPU", what: WHAT.places, value: (row) => row.places, text: (row) => row.places,
    rank: (row) => row.placeRank,
  },
  {
    key: "memory", name: "Memory", what: WHAT.memory, number: true, value: (row) => row.memory, how: howMemory,
    text: (row) => (row.inferred ? "~ " : "") + size(row.memory),
  },
  {
    key: "sm", name: "SM", what: WHAT.sm, number: true, value: (row) => row.sm, text: (row) => percent(row.sm),
    how: (row) => howSm(row.sm, row.parts.length),
  },
  {
    key: "powerW", name: "Power", what: WHAT.power, number: true, value: (row) => row.powerW,
    text: (row) => signed(watts(row.powerW), row.lately),
    how: (row, cycle) => howPower(row, cycle.window_s),
  },
  {
    key: "soFar", name: "Energy", what: WHAT.energy, number: true, value: (row) => row.soFar.total, how: howEnergy,
    text: (row) => signed(joules(row.soFar.total), row.soFar),
  },
  {
    key: "idleS", name: "Idle", number: true, value: (row) => row.idleS, how: howIdle,
    what: "Time so far in which it held memory and did no work; on several GPUs that of each, summed (GPU-m)",
    text: (row) => gpuSpan(row.idleS, row.idleParts),
  },
  {
    key: "cost", name: "Cost", what: "So far, at the prices configured", number: true, value: (row) => row.cost,
    text: (row, cycle) => money(row.cost, cycle.currency), how: (row, cycle) => howCost(row, cycle.currency),
  },
  {
    key: "state", name: "State", what: WHAT.state, value: (row) => (row.ended ? "ended" : row.state), text: stateText,
    how: (row) => howState(row.state),
  },
];

export const PROCESS_COLUMNS = [
  {
    name: "PID", what: "As the host counts processes", number: true, value: (row) => row.pid,
    text: (row) => String(row.pid),
  },
  { name: "Process", what: "Its executable", text: (row) => row.title ?? UNKNOWN, value: (row) => row.title },
  { name: "GPU", what: WHAT.places, text: (row) => row.place, value: (row) => row.place },
  {
    name: "Memory", what: WHAT.memory, number: true, value: (row) => row.memory, text: (row) => size(row.memory),
    how: (row) => (row.memory === null ? "not known: no list has a figure" : "measured, by the driver's process lists"),
  },
  {
    name: "SM", what: WHAT.sm, number: true, value: (row) => row.utilization, text: (row) => percent(row.utilization),
    how: (row) => howSm(row.utilization),
  },
  {
    name: "Power", what: WHAT.power, number: true, value: (row) => row.powerW,
    text: (row) => signed(watts(row.powerW), row.lately),
    how: (row, cycle) => howPower(row, cycle.window_s),
  },
  {
    name: "Energy", what: WHAT.energy, number: true, value: (row) => row.soFar.total, how: howEnergy,
    text: (row) => signed(joules(row.soFar.total), row.soFar),
  },
  {
    name: "State", what: WHAT.state, value: (row) => row.state, how: (row) => howState(row.state),
    text: (row) => stateText({ ...row, ended: !row.active }),
  },
];
