// Charts answer to pointer and keyboard, and show other numbers on other axes.

// Everything that shows one of these series, in any chart or table of the page.
const highlight = (active = []) => {
  for (const element of all("[data-series]")) flag(element, "active", slugOf(element).split(" ").some(slug => active.includes(slug)));
  // Only neighbours step back: other panels stay as they are.
  for (const panel of all(".panel")) flag(panel, "lit", panel.querySelector(".active"));
};

const digits = text => text >= 1000 ? (+text).toFixed() : (+text).toPrecision(4);

const reading = point => {
  const { value, low, high, fraction, ceiling, status, reason } = point.dataset;
  if (!value) return [status, reason].filter(Boolean).join(", ");
  const unit = point.closest("[data-unit]")?.dataset.unit ?? "ms";
  return digits(value) + (unit === "x" ? "×" : unit && ` ${unit}`) + (low ? ` [${digits(low)}, ${digits(high)}]` : "") +
    (fraction ? `, ${Math.round(100 * fraction)} % of ${ceiling || "its ceiling"}` : "");
};
const told = point => point && `${point.dataset.workload}: ${reading(point)}`;

const placeOf = series => series.closest("[data-device-name]")?.dataset.deviceName;

// The readout speaks; this is for eyes only.
const tooltip = document.createElement("div");
tooltip.className = "kbt-tooltip";
tooltip.hidden = true;
say(tooltip, "aria-hidden", true);

const tell = (series, point, x, y) => {
  const { title, note } = series.dataset;
  const lines = { title, where: placeOf(series), metric: point?.closest("[data-metric]")?.dataset.metric, value: told(point), note };
  tooltip.replaceChildren(...Object.keys(lines).filter(name => lines[name]).map(name => {
    const line = document.createElement("span");
    line.className = name;
    line.textContent = lines[name];
    return line;
  }));
  document.body.append(tooltip);
  tooltip.hidden = false;
  const place = (at, size, room) => `${Math.max(4, at + 16 + size > room ? at - 16 - size : at + 16)}px`;
  tooltip.style.left = place(x, tooltip.offsetWidth, innerWidth);
  tooltip.style.top = place(y, tooltip.offsetHeight, innerHeight);
};

const middle = element => {
  const box = element.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
};

const make = (name, attributes, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const attribute in attributes) say(element, attribute, attributes[attribute]);
  element.textContent = text;
  return element;
};
const write = (panel, name, text) => { panel.querySelector(`.${name} text`).textContent = text; };

// A panel's axes come from a figure, so they are only ever read as numbers and as text.
const redraw = panel => {
  const { scales, box } = panel.dataset;
  if (!scales || !metric && !scale && !panel.moved) return;
  panel.moved = true;
  const known = JSON.parse(scales), at = Math.max(0, known.findIndex(one => one?.name === metric));
  const { metric: title, unit = "", better, axes, lines = [], log = false, per } = known[at];
  const logarithmic = scale ? scale === "log" : log;
  const [left, top, right, bottom] = box.split(" ").map(Number);
  const [low, high, ticks] = axes[+logarithmic];
  const along = logarithmic ? Math.log : Number;
  const up = value => (bottom - (along(value) - along(low)) / (along(high) - along(low)) * (bottom - top)).toFixed(2);
  const across = value => `M${left} ${up(value)}H${right}`;
  const said = [unit, logarithmic && "log scale"].filter(Boolean).join(", ");
  write(panel, "y-title", title + (said && ` (${said})`));
  write(panel, "y-better", `${better === "lower" ? "↓" : "↑"} ${better} is better`);
  all(".rule", panel).forEach(rule => rule.remove());
  panel.querySelector(".y-axis").replaceChildren(
    ...ticks.flatMap(tick => [
      make("path", { class: "grid", d: across(tick) }),
      make("text", { x: left - 7, y: +up(tick) + 3.6, "text-anchor": "end" }, (+tick).toLocaleString("en", { maximumSignificantDigits: 6 }))
    ]),
    ...lines.flatMap(([value, text]) => [
      make("path", { class: "rule", d: across(value) }),
      make("text", { class: "rule", x: right, y: up(value) - 4, "text-anchor": "end" }, text)
    ])
  );
  for (const series of all(".series", panel)) {
    Object.assign(series.dataset, { metric: title, unit });
    move(series, ofSeries("band", slugOf(series), panel)?.querySelector("path"), at, up, per);
  }
};

// A marker's value and its ends on each scale.
const numbers = (data, at) => (data.all ?? "").split(";")[at]?.split(" ") ?? [""];

const move = (series, band, at, up, per) => {
  let line = "", area = "", upper = [], lower = [], last;
  const close = () => {
    if (upper[1]) area += `M${[...upper, ...lower.reverse()].join("L")}Z`;
    upper = [];
    lower = [];
  };
  for (const point of all("[data-at]", series)) {
    const data = point.dataset, x = point.getAttribute("x"), goesOn = data.at - 1 === last;
    const [time, fast, slow] = numbers(data, 0);
    let [value, low = "", high = ""] = numbers(data, at);
    // So much per time has the interval of the time, turned over.
    if (per && value && fast) [low, high] = [value * time / slow, value * time / fast];
    Object.assign(data, { value, low, high });
    flag(point, "off", !value);
    if (!low || !goesOn) close();
    if (!value) continue;
    say(point, "y", up(value));
    line += `${goesOn ? "L" : "M"}${x} ${up(value)}`;
    last = +data.at;
    if (low) {
      upper.push(`${x} ${up(high)}`);
      lower.push(`${x} ${up(low)}`);
    }
  }
  close();
  all("path", series).forEach(path => path.closest("defs") || say(path, "d", line));
  if (band) say(band, "d", area);
};

// A panel says once which workloads it has, and its markers once what they show on which scale.
const unpack = panel => {
  const names = JSON.parse(panel.dataset.workloads || "{}");
  for (const { dataset } of all("[data-at]", panel)) {
    const [value, low = "", high = ""] = numbers(dataset, 0);
    dataset.workload ??= names[dataset.at];
    Object.assign(dataset, { value, low, high });
  }
};

const setUpChart = chart => {
  all(".panel", chart).forEach(unpack);
  const readout = chart.querySelector(".readout");
  const series = all(".series", chart), keys = series.map(keyOf);
  // Where the keyboard meets a series: its line, or its label if nothing of it was drawn.
  const stops = series.map(one => one.querySelector("a[href]") || ofSeries("legend-label", slugOf(one), chart)?.querySelector("a[href]") || one);
  let current;

  const of = element => series.find(one => element && slugOf(one) === slugOf(element));
  const points = one => all("[data-workload]:not(.off)", one);
  const clear = () => {
    highlight();
    current?.classList.remove("current");
    tooltip.hidden = true;
    readout.textContent = "";
  };
  const look = (one, point, x, y) => {
    clear();
    highlight([slugOf(one)]);
    current = point;
    if (point) flag(point, "current", true);
    tell(one, point, x, y);
  };

  on(chart, "pointermove", event => {
    const { target, clientX } = event, element = target.closest("[data-series]"), one = of(element);
    if (!one) return tooltip.hidden || clear();
    const gap = point => Math.abs(middle(point)[0] - clientX);
    const nearest = element.matches(".legend-label") ? undefined : points(one).sort((a, b) => gap(a) - gap(b))[0];
    look(one, target.closest("[data-workload]") || nearest, clientX, event.clientY);
  });
  on(chart, "pointerleave", clear);

  // A label shows or hides its line; a line leads to its page, and so do markers and bands, which lie beside the link.
  on(chart, "click", event => {
    const element = event.target.closest("[data-series]"), one = of(element);
    if (!one || event.ctrlKey || event.metaKey) return;
    if (element.matches(".legend-label")) {
      event.preventDefault();
      toggle(keyOf(one), keys, event);
    } else if (!event.target.closest("a[href]")) location.href = stops[series.indexOf(one)].getAttribute("href");
  });

  series.forEach((one, position) => {
    const stop = stops[position], { title, note } = one.dataset, place = placeOf(one);
    const visit = point => {
      look(one, point, ...middle(point || one));
      readout.textContent = `${title || slugOf(one)}${place ? ` on ${place}` : ""}, ${told(point) || note || "no point"}`;
    };
    const leave = by => {
      // Hidden lines are passed over: they cannot be focused.
      for (let at = position, steps = series.length; steps--;) {
        at = (at + by + series.length) % series.length;
        stops[at].focus();
        if (document.activeElement === stops[at] && at !== position) break;
      }
    };
    if (stop === one) say(one, "tabindex", 0);
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
  // A thin line is hard to hit: an unseen wide one lies under it.
  for (const path of all(".series path", chart)) path.closest("defs") || path.before(make("path", { class: "hit", d: path.getAttribute("d") }));
};

draws.push(() => {
  for (const element of all(".chart [data-series]")) flag(element, "off", hidden.has(keyOf(element)) || filtered.has(slugOf(element)));
  all(".panel").forEach(redraw);
});
