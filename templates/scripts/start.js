// When the page is there.
on(document, "DOMContentLoaded", () => {
  all("button.theme").forEach(setUpTheme);
  setUpForm();
  all(".chart").forEach(setUpChart);
  all("th[data-key]").forEach(setUpHead);
  all("tr[data-status]").forEach(setUpKey);
  for (const row of all("tr[data-series]")) {
    on(row, "pointerenter", () => highlight(slugOf(row).split(" ")));
    on(row, "pointerleave", () => highlight());
  }
  show();
  restore();
  on(window, "hashchange", restore);
});
