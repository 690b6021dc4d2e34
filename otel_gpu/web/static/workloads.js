// The table of workloads: sorted, filtered, each with its processes and what its figures rest on when it is opened.

import { COLUMNS, PROCESS_COLUMNS, stateText } from "./columns.js";
import { byId, clean, el, reconcile, setAttribute, setFigure, setHidden, setPairs, setText } from "./dom.js";
import { matches, parseFilter } from "./filter.js";
import { percent, plural, size, UNKNOWN } from "./format.js";
import { podOf } from "./model.js";
import { placeOf } from "./places.js";
import { howCost, howEnergy, howIdle, howMemory, howPower, howSm, howState } from "./words.js";

const STEP = 100; // rows at first, and so many more each time: a table of thousands is slow to draw, and nobody reads it

const kindOf = (column) => (column.number ? "number" : "text");

const createCell = (column) => el("td", { role: "cell", class: kindOf(column), "data-label": column.name }, el("data"));

export class Workloads {
  #cycle = null;
  #colours;
  #sort = { key: "memory", down: true };
  #filter = parseFilter("");
  #open = new Set();
  #most = STEP;
  #say;

  constructor(colours, say) {
    this.#colours = colours;
    this.#say = say;
    for (const column of COLUMNS) {
      const button = el("button", { type: "button", title: column.what }, column.name);
      button.addEventListener("click", () => this.#sortBy(column));
      const heading = el("th", { scope: "col", role: "columnheader", class: kindOf(column) }, button);
      heading.dataset.key = column.key;
      byId("columns").append(heading);
    }
    byId("filter").addEventListener("input", (event) => this.#filterBy(event.target.value));
    byId("further").addEventListener("click", () => this.#showMore());
  }

  update(cycle) {
    this.#cycle = cycle;
    if (!this.#columns.some((column) => column.key === this.#sort.key)) this.#sort = { key: "memory", down: true };
    const here = new Set(cycle.workloads.map((workload) => workload.key));
    for (const key of this.#open) if (!here.has(key)) this.#open.delete(key);
    this.#draw();
  }

  get #columns() {
    return COLUMNS.filter((column) => column.key !== "cost" || this.#cycle.currency !== null);
  }

  #sortBy(column) {
    const again = this.#sort.key === column.key;
    this.#sort = { key: column.key, down: again ? !this.#sort.down : Boolean(column.number) };
    this.#draw();
    this.#say(`Sorted by ${column.name}, ${this.#sort.down ? "descending" : "ascending"}`);
  }

  #filterBy(text) {
    this.#filter = parseFilter(text);
    if (this.#cycle === null) return;
    this.#draw();
    this.#say(byId("count").textContent);
  }

  #showMore() {
    this.#most += STEP;
    this.#draw();
    this.#say(`${byId("rows").querySelectorAll(":scope > tr:not(.details)").length} workloads are shown`);
  }

  #draw() {
    const cycle = this.#cycle;
    const found = cycle.workloads.filter((workload) => matches(workload, this.#filter)).sort((a, b) => this.#compare(a, b));
    for (const heading of byId("columns").children) {
      const { key } = heading.dataset;
      setHidden(heading, key === "cost" && cycle.currency === null);
      const direction = this.#sort.down ? "descending" : "ascending";
      setAttribute(heading, "aria-sort", key === this.#sort.key ? direction : "none");
    }
    reconcile(
      byId("rows"),
      found.slice(0, this.#most).flatMap((workload) => [
        { workload },
        ...(this.#open.has(workload.key) ? [{ workload, details: true }] : []),
      ]),
      (item) => `${item.details ? "details" : "row"} ${item.workload.key}`,
      (item) => (item.details ? this.#createDetails(item.workload) : this.#createRow(item.workload)),
      (node, item) => (item.details ? this.#updateDetails(node, item.workload) : this.#updateRow(node, item.workload)),
    );
    const all = cycle.workloads.length;
    setText(byId("count"), (found.length === all ? "" : `${found.length} of `) + plural(all, "workload"));
    const further = found.length - this.#most;
    setHidden(byId("further"), further <= 0);
    setText(byId("further"), `Show ${Math.min(further, STEP)} more of ${found.length}`);
    setHidden(byId("table"), found.length === 0);
    setHidden(byId("no-workloads"), found.length > 0);
    setText(byId("no-workloads"), this.#nobody(all));
  }

  #nobody(all) {
    if (all) return "No workload matches this filter.";
    if (this.#cycle.pod !== null) return "Nobody of this pod is seen on a GPU.";
    return this.#cycle.all_told ? "Nobody holds a GPU." : "Who holds a GPU is not known.";
  }

  /** What is not known comes last, whichever way. */
  #compare(one, other) {
    const { value, rank = value } = COLUMNS.find((column) => column.key === this.#sort.key);
    const [a, b] = [rank(one), rank(other)];
    if (a !== b) {
      if (a === null) return 1;
      if (b === null) return -1;
      return (a < b ? -1 : 1) * (this.#sort.down ? -1 : 1);
    }
    return one.title < other.title ? -1 : one.title > other.title ? 1 : one.key < other.key ? -1 : 1;
  }

  #createRow(workload) {
    const row = el("tr", { role: "row", "data-id": workload.id });
    const open = el(
      "button", { type: "button", class: "open", "aria-expanded": "false" },
      el("span", { class: "swatch" }), el("span", { class: "name" }),
    );
    open.addEventListener("click", () => {
      if (!this.#open.delete(workload.key)) this.#open.add(workload.key);
      this.#draw();
    });
    row.append(el("th", { scope: "row", role: "rowheader" }, open, el("span", { class: "more" })));
    for (const column of COLUMNS.slice(1)) {
      const cell = createCell(column);
      cell.dataset.key = column.key;
      row.append(cell);
    }
    return row;
  }

  #updateRow(row, workload) {
    const [head, ...cells] = row.children;
    const [swatch, name] = head.firstChild.children;
    setAttribute(head.firstChild, "aria-expanded", String(this.#open.has(workload.key)));
    setAttribute(head, "title", clean(workload.name));
    setAttribute(swatch, "class", `swatch measured ${this.#colours.of(workload.key)}`);
    setText(name, workload.title);
    setText(head.lastChild, moreOf(workload));
    setAttribute(row, "class", workload.ended ? "ended" : (workload.state ?? "none"));
    COLUMNS.slice(1).forEach((column, number) => {
      setHidden(cells[number], column.key === "cost" && this.#cycle.currency === null);
      const how = column.how?.(workload, this.#cycle);
      setFigure(cells[number].firstChild, column.text(workload, this.#cycle), column.value(workload), how);
    });
  }

  #createDetails(workload) {
    const headings = PROCESS_COLUMNS.map((column) =>
      el("th", { scope: "col", role: "columnheader", class: kindOf(column), title: column.what }, column.name),
    );
    const cell = el(
      "td", { role: "cell" },
      el("div", { class: "facts" }, el("dl"), el("dl")),
      el("p", { class: "empty" }, "No process of it is seen on a GPU."),
      el(
        "table", { role: "table", "aria-label": `Processes of ${workload.title}` },
        el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...headings)),
        el("tbody", { role: "rowgroup" }),
      ),
    );
    return el("tr", { role: "row", class: "details" }, cell);
  }

  #updateDetails(row, workload) {
    const [cell] = row.children;
    const [facts, nobody, table] = cell.children;
    setAttribute(cell, "colspan", String(this.#columns.length));
    setPairs(facts.firstChild, namesOf(workload));
    setPairs(facts.lastChild, groundsOf(workload, this.#cycle));
    setHidden(nobody, workload.processes.length > 0);
    setHidden(table, workload.processes.length === 0);
    const sorted = workload.processes.toSorted((a, b) => (b.memory ?? -1) - (a.memory ?? -1) || a.pid - b.pid);
    reconcile(table.tBodies[0], sorted, (process) => process.key, createProcess, (child, process) =>
      updateProcess(child, process, this.#cycle),
    );
  }
}

function createProcess() {
  const row = el("tr", { role: "row" });
  row.append(...PROCESS_COLUMNS.map(createCell));
  return row;
}

function updateProcess(row, process, cycle) {
  PROCESS_COLUMNS.forEach((column, number) => {
    const how = column.how?.(process, cycle);
    setFigure(row.children[number].firstChild, column.text(process), column.value(process), how);
  });
}

/** Where it belongs, in a line under its name. */
function moreOf(workload) {
  const where = podOf(workload) ?? (workload.image && clean(workload.image));
  return [KINDS[workload.kind] ?? clean(workload.kind), where].filter(Boolean).join(" · ");
}

const KINDS = { slurm_job: "Slurm job", systemd_unit: "systemd unit", lxc: "LXC" };

/** What it is called, in full. */
const namesOf = (workload) =>
  [
    ["Name", workload.name], ["Namespace", workload.namespace], ["Pod", workload.pod], ["Pod uid", workload.pod_uid],
    ["Container", workload.container], ["Image", workload.image], ["Id", workload.id],
  ]
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => [name, clean(value)]);

/** What its figures rest on; on several GPUs, what it does on each. */
const groundsOf = (workload, cycle) => [
  ["State", `${stateText(workload)}: ${howState(workload.state)}`],
  ["Memory", howMemory(workload)],
  ["SM", howSm(workload.sm, workload.parts.length)],
  ["Power", howPower(workload, cycle.window_s)],
  ["Energy", howEnergy(workload)],
  ["Idle", howIdle(workload)],
  ...(cycle.currency === null ? [] : [["Cost", howCost(workload, cycle.currency)]]),
  ...(workload.parts.length > 1 ? workload.parts.map(groundsOfPart) : []),
];

function groundsOfPart(part) {
  const { memory, utilization, state } = part.now;
  const held = [`${size(memory.measured)} measured`];
  if (memory.inferred) held.push(`${size(memory.inferred)} inferred`);
  return [`GPU ${placeOf(part)}`, `${held.join(", ")}; SM ${percent(utilization)}; ${state ?? UNKNOWN}`];
}
