// The agent's cycles as they come, for as long as somebody looks, whatever becomes of the agent.

const REFUSED_S = 5; // a browser gives up on an answer that is no stream (503, 401); this one does not
const MISSED = 3; // so many intervals without a cycle, and somebody is told
const GRACE_S = 10;

/**
 * Calls `onCycle(document, beside, id)` for each. What it shows is old from `onOld()` until `onCurrent()`: while a
 * connection is new. `onLost(why)` says that cycles cease, `onBack()` that they come again.
 */
export function follow(path, { onCycle, onOld, onCurrent, onLost, onBack }) {
  let source = null;
  let retry = null;
  let beside = null;
  let newest = null; // the id of the last cycle
  let came = 0; // when that one came first, by the monotonic clock: an agent that hangs tells it to who comes again
  let asked = null; // since when a cycle is waited for; null while nobody looks
  let lost = false;

  const patienceMs = () => (MISSED * (beside?.interval_s ?? 0) + GRACE_S) * 1000;

  const lose = (why) => {
    if (!lost) onLost(why);
    lost = true;
  };

  const open = () => {
    close();
    if (newest !== null) onOld();
    asked = performance.now();
    source = new EventSource(path);
    source.addEventListener("page", (event) => {
      beside = JSON.parse(event.data);
    });
    source.addEventListener("attribution", (event) => {
      const now = performance.now();
      if (event.lastEventId !== newest) came = now;
      newest = event.lastEventId;
      onCycle(JSON.parse(event.data), beside, newest);
      if (now - came > patienceMs()) return;
      asked = came;
      if (lost) onBack();
      else onCurrent();
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
    asked = null;
  };

  // A connection may be dead and not tell: one that is silent for so long is given up for another.
  setInterval(() => {
    if (asked === null || performance.now() - asked <= patienceMs()) return;
    lose("silence");
    open();
  }, 1000);

  // A browser has six connections to a server of HTTP/1: pages that nobody looks at must not hold them.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
}
