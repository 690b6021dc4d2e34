// Light or dark, as somebody chose. In the head and not a module: the page must not flash in the other one first.
"use strict";
(() => {
  const KEY = "otel-gpu.theme";
  const root = document.documentElement;
  const kept = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // the browser keeps nothing
    }
  };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  apply(kept());
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = root.dataset.theme ?? "auto";
    select.parentElement.hidden = false;
    select.addEventListener("change", () => {
      apply(select.value);
      try {
        localStorage.setItem(KEY, select.value);
      } catch {
        // It holds until the page is closed.
      }
    });
  });
})();
