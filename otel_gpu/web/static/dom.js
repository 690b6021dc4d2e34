// Elements, made and kept current. Whatever comes from outside becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

// Characters that act instead of being shown: controls, direction overrides, half characters, line separators.
const ACTING = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** Text from outside such that every character of it is seen. */
export const clean = (text) => String(text).replace(ACTING, "\uFFFD");

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

/** Touches the page only where something changed: a selection survives, and nothing is painted anew. */
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

/** A figure: what is shown, what it is, and how it was obtained. */
export function setFigure(node, text, value, how) {
  setText(node, text);
  setAttribute(node, "value", value === null || value === undefined ? "" : String(value));
  setAttribute(node, "title", how ?? null);
}

const keys = new WeakMap();

/** Makes a parent's children those of the items, in their order. What stays, stays the same element, with its focus. */
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

/** A list of names and what stands for each (`dl`), kept current. */
export function setPairs(list, pairs) {
  reconcile(
    list,
    pairs.map(([name, value], number) => ({ name, value, number })),
    (item) => item.number,
    () => el("div", {}, el("dt"), el("dd")),
    ({ children: [name, value] }, item) => {
      setText(name, item.name);
      setText(value, item.value);
    },
  );
}

/** A list of lines, kept current. */
export function setLines(list, lines) {
  reconcile(
    list,
    lines.map((line, number) => ({ line, number })),
    (item) => item.number,
    () => el("li"),
    (child, item) => setText(child, item.line),
  );
}
