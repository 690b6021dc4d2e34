// The agent's cycles as they come, for as long as somebody looks, whatever becomes of the agent.

const REFUSED_S = 5; // a browser gives up on an answer that is no stream (503, 401); this one does not
const MISSED = 3; // so many intervals without a cycle, and somebody is told
const GRACE_S = 10;

/** Calls `onCycle(document, beside, id)` for each, `onLost(why)` when they cease, `onBack()` when they come again. */
export function follow(path, { onCycle, onLost, onBack }) {
  let source = null;
  let retry = null;
  let beside = null;
  let last = null; // when the last cycle came, by the monotonic clock; null while nobody waits for one
  let lost = false;

  const lose = (why) => {
    if (!lost) onLost(why);
    lost = true;
  };

  const open = () => {
    close();
    source = new EventSource(path);
    source.addEventListener("page", (event) => {
      beside = JSON.parse(event.data);
    });
    source.addEventListener("attribution", (event) => {
      last = performance.now();
      onCycle(JSON.parse(event.data), beside, event.lastEventId);
      if (lost) onBack();
      lost = false;
    });
    source.addEventListener("error", () => {
      lose("connection");
      if (source.readyState === EventSource.CLOSED) retry = setTimeout(open, REFUSED_S * 1000);
    });
  };

  const close = () => {
    clearTimeout(retry);
    source?.close();
    last = null;
  };

  setInterval(() => {
    if (last === null) return;
    const silentS = (performance.now() - last) / 1000;
    if (silentS > MISSED * beside.interval_s + GRACE_S) lose("silence");
  }, 1000);

  // A browser has six connections to a server of HTTP/1: pages that nobody looks at must not hold them.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
}
