// Follows the agent's cycles (`/api/events`) while the page is visible, and reconnects.

const REFUSED_S = 5; // a browser does not retry after a status such as 401 or 503; this module does
const FIRST_S = 10; // for the first cycle; a cycle says how long the next one may take

/**
 * Calls `onCycle(view, id)` for each cycle. `onOld()` says that what is shown may be outdated, because a connection is
 * new; `onCurrent()` ends that. `onLost(why)` says that cycles no longer come, `onBack()` that they come again.
 */
export function follow(path, { onCycle, onOld, onCurrent, onLost, onBack }) {
  let source = null;
  let retry = null;
  let lostAfterS = FIRST_S;
  let newest = null; // the id of the last cycle
  let arrived = 0; // when that cycle first arrived: a sampler that hangs sends the same cycle to each new connection
  let waiting = null; // since when a cycle is awaited; null while the page is hidden
  let lost = false;

  const patienceMs = () => lostAfterS * 1000;

  const lose = (why) => {
    if (!lost) onLost(why);
    lost = true;
  };

  const open = () => {
    close();
    if (newest !== null) onOld();
    waiting = performance.now();
    source = new EventSource(path);
    source.addEventListener("view", (event) => {
      const now = performance.now();
      const view = JSON.parse(event.data);
      lostAfterS = view.lost_after_s;
      if (event.lastEventId !== newest) arrived = now;
      newest = event.lastEventId;
      onCycle(view, newest);
      if (now - arrived > patienceMs()) return;
      waiting = arrived;
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
    waiting = null;
  };

  // A dead connection may report no error: after so much silence it is replaced.
  setInterval(() => {
    if (waiting === null || performance.now() - waiting <= patienceMs()) return;
    lose("silence");
    open();
  }, 1000);

  // A browser has six connections to a server of HTTP/1: hidden pages must not hold them.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
}
