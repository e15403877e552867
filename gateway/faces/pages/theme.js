/* Runs before the first paint, so that a chosen theme never flashes the other one. */
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("fewer.theme");
    if (chosen) document.documentElement.dataset.theme = chosen;
  } catch {
    // storage is forbidden: the system's theme holds
  }
})();
