// The table of workloads: sorted and filtered, each with its names, reasons and processes when it is opened.

import { byId, el, filled, markClass, reconcile, setAttribute, setCell, setDetails, setHidden, setText } from "./dom.js";
import { matches, parseFilter } from "./filter.js";
import { chosen, ordered } from "./sort.js";

const STEP = 100; // rows at first, and as many more each time: a table of thousands is slow to draw

const ORIGIN = "origin"; // drawn under the name

const drawn = (columns) => columns.map((column, at) => ({ ...column, at })).filter((column) => column.key !== ORIGIN);

const kindOf = (column) => (column.is_number ? "number" : "text");

const createHeading = (column, ...children) =>
  el("th", { scope: "col", role: "columnheader", class: kindOf(column), title: column.meaning }, ...children);

export class Workloads {
  #view = null;
  #sort = null; // the agent's, until the user chooses another
  #filter = parseFilter("");
  #open = new Set();
  #limit = STEP;
  #announce;

  constructor(announce) {
    this.#announce = announce;
    byId("filter").addEventListener("input", (event) => this.#filterBy(event.target.value));
    byId("further").addEventListener("click", () => this.#showMore());
  }

  update(view) {
    this.#view = view;
    if (!view.columns.some((column) => column.key === this.#sort?.column)) this.#sort = view.sort;
    const present = new Set(view.workloads.map((workload) => workload.key));
    for (const key of this.#open) if (!present.has(key)) this.#open.delete(key);
    this.#draw();
  }

  #sortBy(column) {
    this.#sort = chosen(this.#sort, column);
    this.#draw();
    const { ascending, descending } = this.#view.words;
    this.#announce(filled(this.#sort.descending ? descending : ascending, { column: column.name }));
  }

  #filterBy(text) {
    this.#filter = parseFilter(text);
    if (this.#view === null) return;
    this.#draw();
    this.#announce(byId("count").textContent);
  }

  #showMore() {
    this.#limit += STEP;
    this.#draw();
    const shown = byId("rows").querySelectorAll(":scope > tr:not(.details)").length;
    this.#announce(filled(this.#view.words.shown_workloads, { shown }));
  }

  #draw() {
    const { columns, workloads, words, no_workloads, no_matches } = this.#view;
    const found = ordered(columns, workloads.filter((workload) => matches(workload, this.#filter)), this.#sort);
    this.#drawHeadings(columns);
    reconcile(
      byId("rows"),
      found.slice(0, this.#limit).flatMap((workload) => [
        { workload },
        ...(this.#open.has(workload.key) ? [{ workload, details: true }] : []),
      ]),
      (item) => `${item.details ? "details" : "row"} ${item.workload.key}`,
      (item) => (item.details ? this.#createDetails(item.workload) : this.#createRow(item.workload)),
      (node, item) => (item.details ? this.#updateDetails(node, item.workload) : this.#updateRow(node, item.workload)),
    );
    const all = workloads.length;
    const counts = { found: found.length, more: Math.min(found.length - this.#limit, STEP) };
    setText(byId("count"), filled(found.length === all ? words.all_workloads : words.found_workloads, counts));
    setHidden(byId("further"), counts.more <= 0);
    setText(byId("further"), filled(words.further_workloads, counts));
    setHidden(byId("table"), found.length === 0);
    setHidden(byId("no-workloads"), found.length > 0);
    setText(byId("no-workloads"), all ? no_matches : no_workloads);
  }

  #drawHeadings(columns) {
    reconcile(
      byId("columns"),
      drawn(columns),
      (column) => column.key,
      (column) => {
        const button = el("button", { type: "button", title: column.meaning }, column.name);
        button.addEventListener("click", () => this.#sortBy(column));
        const heading = createHeading(column, button);
        heading.dataset.key = column.key;
        return heading;
      },
      (heading, column) => {
        const direction = this.#sort.descending ? "descending" : "ascending";
        setAttribute(heading, "aria-sort", column.key === this.#sort.column ? direction : "none");
      },
    );
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
    return row;
  }

  #updateRow(row, workload) {
    const head = row.firstChild;
    const [swatch, name] = head.firstChild.children;
    setAttribute(head.firstChild, "aria-expanded", String(this.#open.has(workload.key)));
    setAttribute(head, "title", workload.full_name);
    setAttribute(swatch, "class", `swatch ${markClass({ kind: "measured", colour: workload.colour })}`);
    setText(name, workload.name);
    setText(head.lastChild, workload.cells.find((_, at) => this.#view.columns[at].key === ORIGIN)?.text ?? "");
    setAttribute(row, "class", `tone-${workload.tone}${workload.colour === null ? " past" : ""}`);
    drawCells(row, drawn(this.#view.columns), workload.cells, 1);
  }

  #createDetails(workload) {
    const cell = el(
      "td", { role: "cell" },
      el("div", { class: "facts" }, el("dl"), el("dl")),
      el("p", { class: "empty" }),
      el(
        "table", { role: "table", "aria-label": filled(this.#view.words.processes_of, { workload: workload.name }) },
        el(
          "thead", { role: "rowgroup" },
          el("tr", { role: "row" }, ...this.#view.process_columns.map((column) => createHeading(column, column.name))),
        ),
        el("tbody", { role: "rowgroup" }),
      ),
    );
    return el("tr", { role: "row", class: "details" }, cell);
  }

  #updateDetails(row, workload) {
    const { identity, explanation, processes, no_processes } = workload;
    const { columns, process_columns } = this.#view;
    const [cell] = row.children;
    const [facts, none, table] = cell.children;
    setAttribute(cell, "colspan", String(drawn(columns).length));
    setDetails(facts.firstChild, identity);
    setDetails(facts.lastChild, explanation);
    setHidden(none, processes.length > 0);
    setText(none, no_processes);
    setHidden(table, processes.length === 0);
    reconcile(
      table.tBodies[0],
      processes,
      (process) => process.key,
      () => el("tr", { role: "row" }),
      (child, process) => {
        setAttribute(child, "class", `tone-${process.tone}`);
        drawCells(child, drawn(process_columns), process.cells, 0);
      },
    );
  }
}

/** The cells of a row from column `first` on, after as many children that are drawn otherwise. */
function drawCells(row, columns, cells, first) {
  while (row.children.length > columns.length) row.lastChild.remove(); // the cost column can go
  for (let place = first; place < columns.length; place += 1) {
    const column = columns[place];
    if (row.children.length === place) row.append(el("td", { role: "cell" }, el("data")));
    const cell = row.children[place];
    setAttribute(cell, "class", kindOf(column));
    setAttribute(cell, "data-label", column.name);
    setAttribute(cell, "data-key", column.key);
    setCell(cell.firstChild, cells[column.at]);
  }
}
