// What somebody filters by: words, and GPUs by their index. The terminal's view has the same rules.

const TERMS = /(?<!\S)gpu\s*([0-9]{1,9})(?!\S)|(\S+)/g;

/** What was typed: `gpu 3` and `gpu3` mean the GPU 3 and no other, the rest are words. */
export function parseFilter(text) {
  const gpus = [];
  const words = [];
  for (const [, gpu, word] of text.toLowerCase().matchAll(TERMS)) {
    if (gpu === undefined) words.push(word);
    else gpus.push(Number(gpu));
  }
  return { gpus, words };
}

/** Whether a workload is left. An id is random digits, so words count at its beginning only: any may be within it. */
export function matches(workload, { gpus, words }) {
  const text = textOf(workload);
  const id = workload.id.toLowerCase();
  return (
    gpus.every((index) => workload.parts.some((part) => part.index === index)) &&
    words.every((word) => text.includes(word) || id.startsWith(word))
  );
}

function textOf(workload) {
  const { namespace, pod, container, image, kind, ended, state } = workload;
  const title = workload.isHash ? null : workload.title;
  const profiles = workload.parts.map((part) => part.profile);
  const processes = workload.processes.map((process) => process.title);
  const words = [title, namespace, pod, container, image, kind, ended ? "ended" : state, "gpu"];
  return [...words, ...profiles, ...processes].filter(Boolean).join("\n").toLowerCase();
}
