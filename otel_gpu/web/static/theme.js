// Applies the chosen theme. Loaded in the head and not as a module, so that the page does not flash in the other theme.
"use strict";
(() => {
  const KEY = "otel-gpu.theme";
  const root = document.documentElement;
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // the browser stores nothing
    }
  };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = root.dataset.theme ?? "auto";
    select.parentElement.hidden = false;
    select.addEventListener("change", () => {
      apply(select.value);
      try {
        localStorage.setItem(KEY, select.value);
      } catch {
        // The choice lasts until the page is closed.
      }
    });
  });
})();
