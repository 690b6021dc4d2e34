// A colour for each workload, the same for as long as it is there. Where there are more workloads than colours, those
// on one GPU have different ones as far as possible.

const COLOURS = 8;

export class Colours {
  #of = new Map();

  /** Those who went give back their colours; who is new gets the one that fewest beside it have, then fewest at all. */
  update(workloads) {
    const here = new Set(workloads.map((workload) => workload.key));
    for (const key of this.#of.keys()) if (!here.has(key)) this.#of.delete(key);
    for (const workload of workloads) {
      if (!this.#of.has(workload.key)) this.#of.set(workload.key, this.#choose(workload, workloads));
    }
  }

  of(key) {
    return `colour-${this.#of.get(key) ?? 0}`;
  }

  #choose(newcomer, workloads) {
    const gpus = new Set(newcomer.parts.map((part) => part.uuid));
    const uses = new Array(COLOURS).fill(0);
    for (const workload of workloads) {
      const colour = this.#of.get(workload.key);
      if (colour === undefined) continue;
      uses[colour] += workload.parts.some((part) => gpus.has(part.uuid)) ? workloads.length : 1;
    }
    return uses.indexOf(Math.min(...uses));
  }
}
