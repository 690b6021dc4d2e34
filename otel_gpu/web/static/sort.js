// The order of workloads. `top` has the same rules (otel_gpu/view/model.py; tests/sort_cases.json).

/** The rows in this order. Unknown values come last, and equal ones in the order of names, in both directions. */
export function ordered(columns, rows, { column: key, descending }) {
  const at = Math.max(0, columns.findIndex((column) => column.key === key));
  return rows.toSorted((one, other) => {
    const [a, b] = [one.cells[at].value, other.cells[at].value];
    if (a !== b) {
      if (a === null) return 1;
      if (b === null) return -1;
      return (a < b ? -1 : 1) * (descending ? -1 : 1);
    }
    return one.name < other.name ? -1 : one.name > other.name ? 1 : one.key < other.key ? -1 : 1;
  });
}

/** The order after the user chose this column: numbers descend at first; a second choice reverses the order. */
export function chosen({ column: key, descending }, column) {
  return { column: column.key, descending: key === column.key ? !descending : column.is_number };
}
