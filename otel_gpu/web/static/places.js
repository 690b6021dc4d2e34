// Where a workload is, in words and in order. The terminal's view has the same rules.

import { clean } from "./dom.js";

/** A GPU by its index, a MIG instance by its GPU's and its profile. */
export const placeOf = ({ index, profile }) => (profile ? `${index ?? "?"} ${clean(profile)}` : String(index ?? "?"));

/** Text that sorts as GPUs are numbered: 2 before 10, a GPU before its instances, one without a number last. */
const rankOf = ({ index, profile }) => `${index === null ? "?" : String(index).padStart(9, "0")} ${profile ?? ""}`;

export const rankOfAll = (parts) => parts.map(rankOf).sort().join("\n");

export const byPlace = (one, other) => (rankOf(one) < rankOf(other) ? -1 : rankOf(one) > rankOf(other) ? 1 : 0);

const follows = (one, other) => !one.profile && !other.profile && one.index !== null && other.index === one.index + 1;

/** All of them, each once; three GPUs or more in a row are written as "0-2". */
export function placesOf(parts) {
  const runs = [];
  for (const part of parts.toSorted(byPlace)) {
    const run = runs.at(-1);
    if (run && placeOf(run.at(-1)) === placeOf(part)) continue;
    if (run && follows(run.at(-1), part)) run.push(part);
    else runs.push([part]);
  }
  const words = (run) => (run.length < 3 ? run.map(placeOf) : `${placeOf(run[0])}-${placeOf(run.at(-1))}`);
  return runs.flatMap(words).join(", ");
}
