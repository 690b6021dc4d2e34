// A colour for each workload, by its key: the same after a reload and for whoever looks. Those on one GPU have different
// ones as far as there are colours; who gave way keeps that colour in this tab, also when the other one is gone.

const COLOURS = 8;

/** The colour that a key asks for (FNV-1a, 32 bits). */
function wish(key) {
  let hash = 0x811c9dc5;
  for (const character of key) hash = Math.imul(hash ^ character.codePointAt(0), 0x01000193);
  return ((hash ^ (hash >>> 16)) >>> 0) % COLOURS;
}

/** Who was there first comes first, so that nobody gives way to a newcomer. */
const byAge = (one, other) => one.since - other.since || (one.key < other.key ? -1 : 1);

export class Colours {
  #of = new Map();

  /** Those who went give back their colours; who is new gets the one it asks for, or else the next that is free here. */
  update(workloads) {
    const here = new Set(workloads.map((workload) => workload.key));
    for (const key of this.#of.keys()) if (!here.has(key)) this.#of.delete(key);
    const newcomers = workloads.filter((workload) => !this.#of.has(workload.key));
    if (!newcomers.length) return;
    const uses = new Map(); // by GPU, how many there have each colour
    const usesOn = (uuid) => uses.get(uuid) ?? uses.set(uuid, new Array(COLOURS).fill(0)).get(uuid);
    const count = ({ key, parts }) => {
      for (const uuid of new Set(parts.map((part) => part.uuid))) usesOn(uuid)[this.#of.get(key)] += 1;
    };
    for (const workload of workloads) if (this.#of.has(workload.key)) count(workload);
    for (const workload of newcomers.sort(byAge)) {
      const beside = workload.parts.map((part) => usesOn(part.uuid));
      const first = wish(workload.key);
      const choices = Array.from({ length: COLOURS }, (_, step) => (first + step) % COLOURS);
      const crowd = (colour) => Math.max(0, ...beside.map((each) => each[colour]));
      const fewest = Math.min(...choices.map(crowd));
      this.#of.set(workload.key, choices.find((colour) => crowd(colour) === fewest));
      count(workload);
    }
  }

  of(key) {
    return `colour-${this.#of.get(key) ?? 0}`;
  }
}
