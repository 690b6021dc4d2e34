// What the user filters by: words, and GPUs by their index. `top` has the same rules (tests/filter_cases.json).

const TERMS = /(?<!\S)gpu\s*([0-9]{1,9})(?!\S)|(\S+)/g;

/** The filter of a text: `gpu 3` and `gpu3` mean GPU 3 and no other, the rest are words. */
export function parseFilter(text) {
  const gpus = [];
  const words = [];
  for (const [, gpu, word] of text.toLowerCase().matchAll(TERMS)) {
    if (gpu === undefined) words.push(word);
    else gpus.push(Number(gpu));
  }
  return { gpus, words };
}

/** Whether a workload is on every GPU and has every word. An id matches at its beginning only: it is random digits. */
export function matches(workload, { gpus, words }) {
  const id = workload.id.toLowerCase();
  return (
    gpus.every((index) => workload.gpus.includes(index)) &&
    words.every((word) => workload.words.includes(word) || id.startsWith(word))
  );
}
