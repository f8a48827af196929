// The script of all pages. Every page is complete without it: it adds tooltips, switches, sorting, filters and permalinks.
(() => {
"use strict";

// ---- State: the theme, what is shown, and the permalink to it ----

const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const on = (target, events, listener) => events.split(" ").forEach(event => target.addEventListener(event, listener));
const flag = (element, name, is) => element.classList.toggle(name, !!is);
const slugOf = element => element.dataset.series;
// The part of the slug that an implementation's lines have in common in all views.
const keyOf = element => slugOf(element).split("--")[0];
const ofSeries = (kind, slug, within = document, part = "") => within.querySelector(`.${kind}[data-series="${CSS.escape(slug)}"]${part}`);

// A figure of a cell may have any attributes: one that makes no sense must not stop the rest of the page.
const attempt = work => part => {
  try { work(part); } catch (error) { console.warn(error); }
};

let hidden = new Set(), filtered = new Set(), order = "", metric = "", view = "";
// Functions that update charts and tables after a change of these.
const draws = [];

const root = document.documentElement;
flag(root, "scripted", true);

// Storage may be forbidden, as it is for some pages opened from disk.
const storedTheme = value => {
  try {
    if (value) localStorage.setItem("kbt-theme", value);
    return localStorage.getItem("kbt-theme");
  } catch { return ""; }
};
const otherTheme = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark")) === "dark" ? "light" : "dark";
if (/^(dark|light)$/.test(storedTheme())) root.dataset.theme = storedTheme();

const setUpTheme = button => {
  const label = () => {
    button.textContent = `${otherTheme() === "light" ? "☀" : "☾"} ${otherTheme()}`;
    button.setAttribute("aria-label", `Use the ${otherTheme()} theme`);
  };
  on(button, "click", () => {
    storedTheme(root.dataset.theme = otherTheme());
    label();
  });
  label();
  button.hidden = false;
};

let form, inputs = [], written;
const chosen = name => inputs.filter(input => input.name === name && input.checked).map(input => input.value);
const isText = input => /search|select/.test(input.type);

// The fragment of a permalink: the view's anchor, a question mark, and every setting that is not the default.
const save = () => {
  const settings = new URLSearchParams();
  for (const input of inputs)
    if (isText(input) ? input.value : input.checked && !input.defaultChecked)
      settings.append(input.name, input.value);
  hidden.forEach(key => settings.append("hide", key));
  if (order) settings.set("sort", order);
  written = `#${view}?${settings}`;
  // Not history.replaceState, which some engines forbid to pages opened from disk.
  location.replace(written);
};

// The anchor and the settings of the page's own link.
const linked = () => location.hash.slice(1).split("?");

// The view that an anchor leads to. That of a device's first view is the device's.
const viewAt = anchor => {
  const picked = all("[data-pick]").find(part => part.dataset.pick === anchor) || document.getElementById(anchor)?.closest("[data-pick]");
  return picked?.dataset.pick || view;
};

const restore = () => {
  if (location.hash === written) return;
  const [anchor, query] = linked();
  const target = document.getElementById(anchor);
  view = viewAt(anchor);
  // An anchor alone leaves everything else as it is.
  if (query !== undefined) {
    const settings = new URLSearchParams(query);
    for (const input of inputs) {
      const values = settings.getAll(input.name);
      if (isText(input)) input.value = values[0] || "";
      else input.checked = values[0] ? values.includes(input.value) : input.defaultChecked;
    }
    hidden = new Set(settings.getAll("hide"));
    order = settings.get("sort") || "";
  }
  show();
  if (!target) return;
  for (let fold = target; (fold = fold.closest("details")); fold = fold.parentNode) fold.open = true;
  (document.querySelector(".comparison:not([hidden])") || target).scrollIntoView();
};

// Show one view at a time.
const pick = view => {
  const isPicked = part => part.dataset.pick === view;
  for (const part of all("[data-pick]")) {
    flag(part, "unpicked", view && !isPicked(part));
    if (isPicked(part)) part.open = true;
  }
  for (const device of all("section.device")) flag(device, "unpicked", view && !isPicked(device) && !all("[data-pick]", device).some(isPicked));
  for (const link of all(".glance a")) link.ariaCurrent = link.hash === `#${view}` ? "true" : null;
};

const words = () => inputs.find(input => input.name === "q").value.toLowerCase();

// The front page's search: links to what has all words in its name or kind.
const search = list => {
  const query = words().trim(), parts = query.split(/\s+/), found = new Map();
  for (const link of query ? all("[data-find]") : []) {
    const { find } = link.dataset, text = `${link.textContent} ${find}`.toLowerCase();
    if (parts.every(word => text.includes(word))) found.set(link.href, [link, find]);
  }
  list.replaceChildren(...[...found.values()].slice(0, 12).map(([link, find]) => {
    const item = document.createElement("li"), copy = document.createElement("a");
    copy.href = link.href;
    copy.textContent = link.textContent;
    item.append(copy, ` ${find}`);
    return item;
  }));
  form.querySelector("output").textContent = query && `${found.size} found${found.size > 12 ? ", the first 12" : ""}`;
};

const filter = () => {
  const rows = all("tr[data-status]");
  const parts = words().split(" ");
  const fits = (row, name) => !chosen(name)[0] || chosen(name).includes(row.dataset[name]);
  filtered.clear();
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !(parts.every(word => text.includes(word)) && fits(row, "family") && fits(row, "status"));
    if (row.hidden) filtered.add(slugOf(row));
  }
  const seen = rows.filter(row => !row.closest(".unpicked"));
  form.querySelector("output").textContent = `${seen.filter(row => !row.hidden).length} of ${seen.length} shown`;
};

const show = () => {
  [metric = ""] = chosen("metric");
  if (form) {
    const list = form.querySelector(".found");
    pick(view);
    list ? search(list) : filter();
  }
  draws.forEach(draw => draw());
};

const change = () => {
  // The event of a link to another view may be still to come.
  if (location.hash !== written) view = viewAt(linked()[0]);
  show();
  save();
};

// Show or hide an implementation's lines; with Shift or by a double click: its line only, or all again.
const toggle = (key, keys, event) => {
  const others = keys.filter(one => one !== key), twice = event.detail === 2;
  const flip = () => hidden.delete(key) || hidden.add(key);
  // A double click begins with a click, which is undone here.
  if (twice || !event.shiftKey) flip();
  if (twice || event.shiftKey) hidden = new Set(!hidden.has(key) && others.every(one => hidden.has(one)) ? [] : others);
  change();
};

const setUpForm = () => {
  form = document.querySelector("form.switches");
  if (!form) return;
  inputs = all("input, select", form);
  view = document.querySelector("[data-pick]")?.dataset.pick || "";
  on(form, "input", change);
  on(form, "submit", event => event.preventDefault());
  on(form, "reset", () => setTimeout(() => {
    hidden.clear();
    order = "";
    change();
  }));
};

// ---- Charts: tooltips, keyboard, and those of other metrics ----

// Highlight these series in all charts and tables of the page.
const highlight = (active = []) => {
  for (const element of all("[data-series]")) flag(element, "active", slugOf(element).split(" ").some(slug => active.includes(slug)));
  // Other lines are dimmed in the same panel only.
  for (const panel of all("svg.panel")) flag(panel, "lit", panel.querySelector(".active"));
};

const digits = text => text >= 1000 ? (+text).toFixed() : (+text).toPrecision(4);

const reading = point => {
  const { value, low, high, status, reason } = point.dataset;
  if (!value) return [status, reason].filter(Boolean).join(", ");
  const { unit = "" } = panelOf(point).dataset;
  return digits(value) + (unit === "x" ? "×" : unit && ` ${unit}`) + (low ? ` [${digits(low)}, ${digits(high)}]` : "") + (status ? `, ${status}` : "");
};
const panelOf = element => element.closest("svg.panel");
const pointText = point => point && `${point.dataset.workload}: ${reading(point)}`;

// Hidden from screen readers, which read the chart's output element instead.
const tooltip = document.createElement("div");
tooltip.className = "kbt-tooltip";
tooltip.hidden = true;
tooltip.setAttribute("aria-hidden", true);

const showTooltip = (series, point, x, y) => {
  const { title, note } = series.dataset, { title: where, metric } = panelOf(series).dataset;
  const lines = { title: title || slugOf(series), where, metric: point && metric, value: pointText(point), note };
  tooltip.replaceChildren(...Object.keys(lines).filter(name => lines[name]).map(name => {
    const line = document.createElement("span");
    line.className = name;
    line.textContent = lines[name];
    return line;
  }));
  document.body.append(tooltip);
  tooltip.hidden = false;
  const position = (at, size, room) => `${Math.max(4, at + 16 + size > room ? at - 16 - size : at + 16)}px`;
  tooltip.style.left = position(x, tooltip.offsetWidth, innerWidth);
  tooltip.style.top = position(y, tooltip.offsetHeight, innerHeight);
};

const middle = element => {
  const box = element.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
};

const svgElement = (name, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const attribute in attributes) element.setAttribute(attribute, attributes[attribute]);
  return element;
};

// Panels are loaded when a reader needs them. A page that was opened from disk may load them as scripts only.
const scripts = {};
const load = url => scripts[url] ??= new Promise(done => {
  const script = document.createElement("script");
  script.src = url;
  // The event follows directly on the script, so no other one has replaced the variable.
  on(script, "load error", event => done(event.type === "load" ? window.kbtData : {}));
  document.head.append(script);
});

const panelOfHtml = html => {
  const template = document.createElement("template");
  template.innerHTML = html;
  setUpChart(template.content.firstElementChild);
  return template.content.firstElementChild;
};

// Show each view's panel of the chosen metric; a view without one keeps its first.
const exchange = charts => {
  for (const chart of all(".chart")) {
    const now = chart.querySelector("svg.panel, .plot-box");
    chart.drawn ??= { first: now };
    const html = charts[metric]?.[now.dataset.view], wanted = html ? metric : "first";
    if (now.dataset.chart !== (html ? metric : chart.drawn.first.dataset.chart)) now.replaceWith(chart.drawn[wanted] ??= panelOfHtml(html));
  }
};

const setUpChart = chart => {
  const readout = () => chart.closest(".chart").querySelector(".readout");
  const series = all(".series", chart), keys = series.map(keyOf);
  // The keyboard focuses a series on its line, or on its label if nothing of it was drawn.
  const stops = series.map(one => one.querySelector("a[href]") || ofSeries("legend-label", slugOf(one), chart, " a[href]") || one);
  let current;

  const of = element => series.find(one => element && slugOf(one) === slugOf(element));
  // Crosses of failed workloads are a group of their own.
  const points = one => all("[data-workload]", chart).filter(point => slugOf(point.closest("[data-series]")) === slugOf(one)).sort((a, b) => a.getAttribute("x") - b.getAttribute("x"));
  const clear = () => {
    highlight();
    current?.classList.remove("current");
    tooltip.hidden = true;
    readout().textContent = "";
  };
  const look = (one, point, x, y) => {
    clear();
    highlight([slugOf(one)]);
    current = point;
    if (point) flag(point, "current", true);
    showTooltip(one, point, x, y);
  };

  on(chart, "pointermove", event => {
    const { target, clientX } = event, element = target.closest("[data-series]"), one = of(element);
    if (!one) return tooltip.hidden || clear();
    const gap = point => Math.abs(middle(point)[0] - clientX);
    const nearest = element.matches(".legend-label") ? undefined : points(one).sort((a, b) => gap(a) - gap(b))[0];
    look(one, target.closest("[data-workload]") || nearest, clientX, event.clientY);
  });
  on(chart, "pointerleave", clear);

  // A label shows or hides its line. A line, a marker and a band lead to the implementation's page.
  on(chart, "click", event => {
    const element = event.target.closest("[data-series]"), one = of(element);
    if (!one || event.ctrlKey || event.metaKey) return;
    if (element.matches(".legend-label")) {
      event.preventDefault();
      toggle(keyOf(one), keys, event);
    } else if (!event.target.closest("a[href]")) {
      const page = stops[series.indexOf(one)].getAttribute("href");
      if (page) location.href = page;
    }
  });

  series.forEach((one, position) => {
    const stop = stops[position], { title, note } = one.dataset;
    const visit = point => {
      look(one, point, ...middle(point || one));
      readout().textContent = `${title || slugOf(one)} on ${chart.dataset.title}, ${pointText(point) || note || "no point"}`;
    };
    const leave = by => {
      // Hidden lines cannot be focused and are skipped.
      for (let at = position, steps = series.length; steps--;) {
        at = (at + by + series.length) % series.length;
        stops[at].focus();
        if (document.activeElement === stops[at] && at !== position) break;
      }
    };
    if (stop === one) one.setAttribute("tabindex", 0);
    on(stop, "blur", clear);
    on(stop, "focus", () => visit());
    on(stop, "keydown", event => {
      const { key } = event, found = points(one), index = found.indexOf(current);
      const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: found.length - 1 }[key];
      if (key === "Escape") return clear();
      if (to !== undefined) visit(found[Math.min(found.length - 1, Math.max(0, to))]);
      else if (key === "ArrowDown" || key === "ArrowUp") leave(key === "ArrowDown" ? 1 : -1);
      else if (key === " ") {
        toggle(keyOf(one), keys, event);
        if (one.matches(".off")) leave(1);
      } else return;
      event.preventDefault();
    });
  });
  // A thin line is hard to hit: an invisible wide one is put below it.
  for (const path of all(".series a path, .series > path", chart)) path.before(svgElement("path", { class: "hit", d: path.getAttribute("d") }));
};

const flagLines = () => {
  for (const element of all(".chart [data-series]")) flag(element, "off", hidden.has(keyOf(element)) || filtered.has(slugOf(element)));
};

// Charts that are not in the page, when they come into view.
const loadInView = places => {
  const watcher = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) {
      const { load: url, chart, view } = target.dataset;
      load(url).then(charts => {
        const html = charts[chart]?.[view];
        // Another metric's chart may be in its place meanwhile.
        if (html && target.isConnected) target.replaceWith(panelOfHtml(html));
        flagLines();
      });
    }
  }, { rootMargin: "500px" });
  places.forEach(place => watcher.observe(place));
};

draws.push(flagLines, () => {
  const url = form?.dataset.charts;
  if (url && (scripts[url] || inputs.some(input => input.name === "metric" && input.checked && !input.defaultChecked)))
    load(url).then(charts => {
      exchange(charts);
      flagLines();
    });
});

// ---- Two implementations of a view, compared ----

const make = (name, text, parts = []) => {
  const element = document.createElement(name);
  element.append(text ?? "", ...parts);
  return element;
};

const setUpComparison = place => draws.push(() => {
  const select = ["compare", "with"].map(name => inputs.find(input => input.name === name));
  const [ours, theirs] = select.map(one => one.value), titles = select.map(one => one.selectedOptions[0]?.text);
  place.hidden = !ours || !theirs || ours === theirs;
  if (!place.hidden) load(form.dataset.pairs).then(({ views, verdicts }) => {
    const { title, baseline, workloads, ms, ratios } = views?.[view] ?? {}, found = ratios?.[ours]?.[theirs];
    const verdict = ([, , name, separate], inWords) => {
      const [glyph, word, tone] = verdicts[name], mark = make("span", `${glyph} ${word}`);
      mark.className = `mark ${tone}`;
      return [mark, separate && inWords && name !== "separate" ? ", measured separately" : separate && !inWords ? " ∥" : ""];
    };
    const heading = make("h3", `${titles[0]} compared with ${titles[1]}`);
    if (!found) return place.replaceChildren(heading, make("p", `They were not both measured in the view ${title ?? view}.`));
    const ratio = one => [make("b", one[0]), " ", Object.assign(make("span", one[1]), { className: "interval" })];
    const lines = workloads.map((name, at) => make("tr", null, [
      Object.assign(make("th", name), { scope: "row" }), make("td", null, ratio(found[at + 1])), make("td", null, verdict(found[at + 1])),
      ...[ours, theirs].map(one => make("td", ms[one][at])),
    ]));
    const heads = ["Workload", "Speed-up", "Verdict", ...titles.map(one => `${one}, ms`)].map(text => Object.assign(make("th", text), { scope: "col" }));
    const box = Object.assign(make("div", null, [make("table", null, [make("thead", null, [make("tr", null, heads)]), make("tbody", null, lines)])]), { className: "scroll", tabIndex: 0, role: "group", ariaLabel: heading.textContent });
    place.replaceChildren(
      heading,
      make("p", `${title}: `, [...ratio(found[0]), " ", ...verdict(found[0], true), workloads[1] ? `, geometric mean of ${workloads.length} workloads.` : "."]),
      box,
      make("p", found.some(one => one[3]) ? `∥ Measured separately: the ratio of their speed-ups over ${baseline || "the baseline"}, with the intervals of both where they are known.` : "Both were measured in one session, or the device was equally fast for both."),
    );
  });
});

// ---- Tables: sorting, and the buttons that show or hide lines ----

// The sort key of a cell: its text or `data-v`; undefined for a column that a wider cell covers.
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
      // Rows without a value come last in either direction.
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
  // Clicks change from one direction to the other, then back to the original order.
  const ways = [first + key, (first ? "" : "-") + key, ""];
  on(button, "click", () => {
    order = ways[ways.indexOf(order) + 1] ?? ways[0];
    change();
  });
};

// Add a button with the row's line and marker, which shows or hides the line.
const setUpKey = row => {
  const mark = ofSeries("legend-label", slugOf(row), document, " use");
  if (!mark) return;
  const button = document.createElement("button"), [x, y] = ["x", "y"].map(name => mark.getAttribute(name));
  const picture = svgElement("svg", { viewBox: `${x - 17} ${y - 6} 34 12`, "aria-hidden": true });
  // The chart that the marker is defined in may be exchanged.
  const shape = document.querySelector(mark.getAttribute("href")).cloneNode();
  shape.removeAttribute("id");
  shape.setAttribute("transform", `translate(${x} ${y})`);
  shape.setAttribute("fill", mark.getAttribute("fill"));
  picture.append(...all("path", mark.closest(".legend-label")).filter(path => !path.closest("defs")).map(path => path.cloneNode()), shape);
  button.type = "button";
  button.className = "swatch";
  button.title = "Show or hide the line; Shift or double-click: show only this line";
  button.setAttribute("aria-label", `Line of ${row.querySelector("th").textContent.trim()}`);
  button.append(picture);
  row.querySelector("th").prepend(button);
  on(button, "click", event => toggle(keyOf(row), all("tr[data-status]", row.parentNode).map(keyOf), event));
  draws.push(() => button.setAttribute("aria-pressed", !hidden.has(keyOf(row))));
};

draws.push(() => all("table:has(th[data-key])").forEach(sortTable));

// Tables that continue to the right fade out there.
const markMore = box => {
  const mark = () => flag(box, "more", box.scrollWidth - box.clientWidth - box.scrollLeft > 4);
  on(box, "scroll", mark);
  new ResizeObserver(mark).observe(box);
};

// ---- Start ----

on(document, "DOMContentLoaded", () => {
  all("button.theme").forEach(setUpTheme);
  setUpForm();
  all(".comparison").forEach(setUpComparison);
  all("svg.panel").forEach(attempt(setUpChart));
  all("th[data-key]").forEach(setUpHead);
  all("tr[data-status]").forEach(setUpKey);
  for (const row of all("tr[data-series]")) {
    on(row, "pointerenter", () => highlight(slugOf(row).split(" ")));
    on(row, "pointerleave", () => highlight());
  }
  show();
  restore();
  loadInView(all("[data-load]"));
  all(".scroll").forEach(markMore);
  on(window, "hashchange", restore);
});
})();
