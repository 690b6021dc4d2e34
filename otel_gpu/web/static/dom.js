// Creates and updates elements. Text from the agent becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children (nodes, or text). */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function svg(name, attributes = {}) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

/** A text of the view with these values for the names in braces. */
export const filled = (template, values) => template.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

/** Changes the page only where it differs: a selection survives, and nothing is painted again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/** Shows a cell of the view: its text, the value behind it, and how it was obtained. */
export function setCell(node, { text, value, reason }) {
  setText(node, text);
  setAttribute(node, "value", value === null ? "" : String(value));
  setAttribute(node, "title", reason);
}

/** The classes of a mark for memory: its kind, and the colour of the workload that holds it. */
export const markClass = ({ kind, colour }) => (colour === null ? kind : `${kind} colour-${colour}`);

const keys = new WeakMap();

/** Makes a parent's children those of the items, in their order. An element that remains keeps its focus. */
export function reconcile(parent, items, keyOf, create, update) {
  const had = new Map([...parent.children].map((child) => [keys.get(child), child]));
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = had.get(key);
    had.delete(key);
    if (child === undefined) {
      child = create(item);
      keys.set(child, key);
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of had.values()) child.remove();
  if (focused !== null && focused !== document.activeElement && focused.isConnected) {
    focused.focus({ preventScroll: true });
  }
}

/** A list of details (`dl`): names and texts. */
export function setDetails(list, details) {
  reconcile(
    list,
    details.map((detail, number) => ({ ...detail, number })),
    (item) => item.number,
    () => el("div", {}, el("dt"), el("dd")),
    ({ children: [name, text] }, item) => {
      setText(name, item.name);
      setText(text, item.text);
    },
  );
}

/** A list of lines. */
export function setLines(list, lines) {
  reconcile(
    list,
    lines.map((line, number) => ({ line, number })),
    (item) => item.number,
    () => el("li"),
    (child, item) => setText(child, item.line),
  );
}
