// Draws every cycle that the agent sends. The agent decides all rows, texts and colours (otel_gpu/view).

import { byId, el, filled, reconcile, setAttribute, setCell, setHidden, setText } from "./dom.js";
import { updateGpus } from "./gpus.js";
import { History } from "./plots.js";
import { follow } from "./stream.js";
import { Workloads } from "./workloads.js";

// The only texts that no view has: those before the first one.
const WAITING = "Waiting for the first sample…";
const NO_ANSWER = "The agent does not respond. Retrying…";

const BACK_MS = 10_000; // how long the notice is shown that the agent is back

const timeOfDay = (() => {
  const format = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return (unixS) => format.format(unixS * 1000);
})();

const history = new History();
const announce = (text) => setText(byId("announcement"), text); // for screen readers: results of actions, not every cycle
const workloads = new Workloads(announce);
let shown = null;
let newest = null; // and its id: the same as what is shown, unless the page is paused
let paused = false;
let lost = false;
let title = document.title; // without the mark of a lost agent
let backTimer = null;

function receive(view, id) {
  history.add(view.history, view.plot_span_s);
  newest = [view, id];
  if (!paused) show(view, id);
}

function show(view, id) {
  showHead(view);
  setHidden(byId("problems"), view.problems.length === 0);
  showProblems(view.problems);
  setText(byId("remedy"), view.remedy);
  setHidden(byId("workloads"), false);
  setHidden(byId("devices"), view.gpus.length === 0 && !view.no_gpus);
  setHidden(byId("overview"), view.totals.length === 0);
  showTotals(view.totals);
  updateGpus(byId("gpus"), view, history);
  setHidden(byId("no-gpus"), view.gpus.length > 0);
  setText(byId("no-gpus"), view.no_gpus);
  workloads.update(view);
  if (shown === null) notify(null);
  shown = view;
  setAttribute(byId("main"), "data-cycle", id);
}

function showHead(view) {
  const { host, about, at_s, simulated, version, words } = view;
  setText(byId("where"), [host, ...about].filter(Boolean).join(" · "));
  setText(byId("updated"), filled(words.as_of, { time: timeOfDay(at_s) }));
  setHidden(byId("pause"), false);
  setHidden(byId("simulated"), simulated === null);
  setText(byId("simulated"), simulated ?? "");
  setText(byId("version"), version);
  title = view.title;
  showTitle();
}

/** The title shows the loss of the agent too, because a background tab shows nothing else. */
function showTitle() {
  const text = lost && shown !== null ? filled(shown.words.lost_title, { title }) : title;
  if (document.title !== text) document.title = text;
}

function showProblems(problems) {
  reconcile(
    byId("problem-list"), problems, ({ text }) => text, () => el("li"),
    (item, { text, tone }) => {
      setAttribute(item, "class", `tone-${tone}`);
      setText(item, text);
    },
  );
}

function showTotals(totals) {
  reconcile(
    byId("totals"), totals, ({ name }) => name,
    ({ name }) => el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, el("data")), " ", el("small"))),
    (node, { cell, qualifier }) => {
      setCell(node.querySelector("data"), cell);
      setText(node.querySelector("small"), qualifier);
    },
  );
}

/** A page that updates itself must have a pause (WCAG 2.2, 2.2.2). */
function togglePause() {
  paused = !paused;
  setAttribute(byId("pause"), "aria-pressed", String(paused));
  if (paused) setText(byId("updated"), filled(shown.words.paused, { time: timeOfDay(shown.at_s) }));
  else show(...newest);
}

/** Shows and announces a notice about the agent; `null` removes it. */
function notify(text, kind = "lost") {
  clearTimeout(backTimer);
  const link = byId("link");
  setAttribute(link, "class", `notice ${kind}`);
  setHidden(link, text === null);
  setText(link, text ?? "");
  announce(text ?? "");
}

const markOld = () => document.body.classList.add("stale");
const markCurrent = () => document.body.classList.remove("stale");

function showLost(why) {
  markOld();
  lost = true;
  showTitle();
  if (shown === null) {
    notify(NO_ANSWER);
    return;
  }
  const { lost: template, no_data, no_connection } = shown.words;
  const reason = why === "silence" ? no_data : no_connection;
  notify(filled(template, { since: timeOfDay(Date.now() / 1000), reason, time: timeOfDay(shown.at_s) }));
}

function showBack() {
  markCurrent();
  lost = false;
  showTitle();
  notify(newest[0].words.back, "back");
  backTimer = setTimeout(() => notify(null), BACK_MS);
}

byId("pause").addEventListener("click", togglePause);
notify(WAITING, "back");
follow("/api/events", { onCycle: receive, onOld: markOld, onCurrent: markCurrent, onLost: showLost, onBack: showBack });
