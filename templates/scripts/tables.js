// Tables: sorting, and the button of each row that shows or hides its line.

// Empty for a dash, and for a column that a wider cell covers; a number is what its text begins with.
const sortKey = (row, column) => {
  let at = 0;
  for (const cell of row.cells) {
    const text = cell.dataset.v ?? cell.textContent.trim().replaceAll(",", "");
    if (at === column) return text === "–" ? "" : text;
    at += cell.colSpan;
  }
};

const sortTable = table => {
  const body = table.tBodies[0], rows = [...body.rows];
  rows.forEach((row, at) => { row.place ??= at; });
  rows.sort((a, b) => a.place - b.place);
  all("th[data-key]", table).forEach(head => {
    const mine = order.replace("-", "") === head.dataset.key, sign = order[0] === "-" ? -1 : 1, column = head.cellIndex;
    head.ariaSort = mine ? sign > 0 ? "ascending" : "descending" : null;
    if (mine) rows.sort((a, b) => {
      const one = sortKey(a, column), two = sortKey(b, column);
      // What has no value comes last in either direction.
      return !one - !two || sign * (parseFloat(one) - parseFloat(two) || (one && isNaN(parseFloat(one)) ? one.localeCompare(two) : 0));
    });
  });
  body.append(...rows);
};

const setUpHead = head => {
  const button = document.createElement("button"), { key, first = "" } = head.dataset;
  button.type = "button";
  button.className = "sort";
  button.append(head.firstChild);
  head.prepend(button);
  // Once, the other way round, and as it was.
  const ways = [first + key, (first ? "" : "-") + key, ""];
  on(button, "click", () => {
    order = ways[ways.indexOf(order) + 1] ?? ways[0];
    change();
  });
};

// The row's line, as the legend draws it.
const setUpKey = row => {
  const label = ofSeries("legend-label", slugOf(row)), mark = label?.querySelector("use");
  if (!mark) return;
  const button = document.createElement("button"), [x, y] = ["x", "y"].map(name => mark.getAttribute(name));
  const picture = make("svg", { viewBox: `${x - 17} ${y - 6} 34 12`, "aria-hidden": true });
  const drawn = label.cloneNode(true);
  all("text, defs", drawn).forEach(part => part.remove());
  picture.append(...all("path, use", drawn));
  button.type = "button";
  button.className = "swatch";
  button.title = "Show or hide the line; Shift or double click: it alone";
  say(button, "aria-label", `Line of ${row.querySelector("th").textContent.trim()}`);
  button.append(picture);
  row.querySelector("th").prepend(button);
  on(button, "click", event => toggle(keyOf(row), all("tr[data-status]", row.parentNode).map(keyOf), event));
  draws.push(() => say(button, "aria-pressed", !hidden.has(keyOf(row))));
};

draws.push(() => all("table:has(th[data-key])").forEach(sortTable));
