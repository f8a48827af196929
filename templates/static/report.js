/* Charts answer to pointer and keyboard, and the theme to its button. Every page reads without this file. */
(function () {
  "use strict";
  var root = document.documentElement;
  var KEY = "kbt-theme";
  root.classList.add("scripted");

  // Storage may be forbidden, as it is for some pages opened from disk.
  function storedTheme(value) {
    try {
      if (value) localStorage.setItem(KEY, value);
      return localStorage.getItem(KEY);
    } catch (error) {
      return null;
    }
  }

  function theme() {
    var light = window.matchMedia && matchMedia("(prefers-color-scheme: light)").matches;
    return root.dataset.theme || (light ? "light" : "dark");
  }

  var chosen = storedTheme();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  function setUpTheme(button) {
    function label() {
      var other = theme() === "dark" ? "light" : "dark";
      button.textContent = (other === "light" ? "☀ " : "☾ ") + other;
      button.setAttribute("aria-label", "Use the " + other + " theme");
    }
    button.addEventListener("click", function () {
      root.dataset.theme = theme() === "dark" ? "light" : "dark";
      storedTheme(root.dataset.theme);
      label();
    });
    label();
    button.hidden = false;
  }

  function slugs(element) {
    return (element.dataset.series || "").split(" ").filter(Boolean);
  }

  function panelOf(element) {
    return element.dataset.panel || element.dataset.device;
  }

  // Everything that shows one of these series, in any chart or table of the page.
  function highlight(active) {
    var shown = Array.from(document.querySelectorAll("[data-series]"));
    var panels = new Set();
    shown.forEach(function (element) {
      var on = slugs(element).some(function (slug) { return active.includes(slug); });
      element.classList.toggle("active", on);
      if (on && panelOf(element)) panels.add(panelOf(element));
    });
    // Only neighbours step back: other devices' and views' panels stay as they are.
    shown.forEach(function (element) {
      var beside = panels.has(panelOf(element)) && !element.classList.contains("active");
      element.classList.toggle("dimmed", beside);
    });
  }

  function number(text) {
    var value = Number(text);
    return value >= 1000 ? value.toFixed(0) : value.toPrecision(4);
  }

  // What the chart says of its values: of each series, or of all of them at once.
  function said(element, name) {
    var holder = element.closest("[data-" + name + "]");
    return holder ? holder.getAttribute("data-" + name) : null;
  }

  function withUnit(value, unit) {
    if (unit === "x" || unit === "×") return value + "×";
    return unit ? value + " " + unit : value;
  }

  function reading(point) {
    var data = point.dataset;
    if (data.value === undefined) return (data.status || "no value") + (data.reason ? ", " + data.reason : "");
    var unit = said(point, "unit");
    var text = withUnit(number(data.value), unit === null ? "ms" : unit);
    if (data.low && data.high) text += " [" + number(data.low) + ", " + number(data.high) + "]";
    if (data.fraction) text += ", " + Math.round(100 * data.fraction) + " % of " + (data.ceiling || "its ceiling");
    return text;
  }

  var tooltip = document.createElement("div");
  tooltip.className = "kbt-tooltip";
  tooltip.hidden = true;
  // The readout speaks; this is for eyes only.
  tooltip.setAttribute("aria-hidden", "true");

  function line(text, name) {
    var element = document.createElement(name === "title" ? "strong" : "span");
    element.className = name;
    element.textContent = text;
    if (text) tooltip.appendChild(element);
  }

  function showTooltip(series, point, x, y) {
    tooltip.textContent = "";
    line(series.dataset.title || series.dataset.series, "title");
    line(series.dataset.deviceName || series.dataset.device || "", "quiet");
    if (point) line(said(point, "metric") || "", "quiet");
    if (point) line(point.dataset.workload + ": " + reading(point), "value");
    line(series.dataset.note || "", "quiet");
    if (!tooltip.parentNode) document.body.appendChild(tooltip);
    tooltip.hidden = false;
    var box = tooltip.getBoundingClientRect();
    var left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
    var top = y + 16 + box.height > innerHeight ? y - 16 - box.height : y + 16;
    tooltip.style.left = Math.max(4, left) + "px";
    tooltip.style.top = Math.max(4, top) + "px";
  }

  function middle(element) {
    var box = element.getBoundingClientRect();
    return { x: box.left + box.width / 2, y: box.top + box.height / 2 };
  }

  function setUpChart(chart) {
    var readout = chart.querySelector(".readout");
    var all = Array.from(chart.querySelectorAll(".series[data-series]"));
    var current = null;

    function seriesOf(element) {
      var slug = slugs(element)[0];
      return all.find(function (series) { return series.dataset.series === slug; }) || null;
    }

    function pointsOf(series) {
      return Array.from(series.querySelectorAll("[data-workload]"));
    }

    function nearest(series, x) {
      return pointsOf(series).reduce(function (best, point) {
        return !best || Math.abs(middle(point).x - x) < Math.abs(middle(best).x - x) ? point : best;
      }, null);
    }

    function mark(point) {
      if (current) current.classList.remove("current");
      current = point;
      if (point) point.classList.add("current");
    }

    function clear() {
      highlight([]);
      mark(null);
      tooltip.hidden = true;
      readout.textContent = "";
    }

    function under(event) {
      return event.target.closest ? event.target.closest("[data-series]") : null;
    }

    chart.addEventListener("pointermove", function (event) {
      var element = under(event);
      var series = element && seriesOf(element);
      if (!series) return tooltip.hidden || clear();
      var point = event.target.closest("[data-workload]") ||
        (element.classList.contains("legend-label") ? null : nearest(series, event.clientX));
      highlight([series.dataset.series]);
      mark(point);
      showTooltip(series, point, event.clientX, event.clientY);
    });
    chart.addEventListener("pointerleave", clear);

    // Markers and labels may lie beside the link of their series.
    chart.addEventListener("click", function (event) {
      var element = under(event);
      var series = element && seriesOf(element);
      var link = series && stops[all.indexOf(series)];
      if (!link || link === series || event.target.closest("a[href]")) return;
      var url = link.getAttribute("href");
      if (event.ctrlKey || event.metaKey) window.open(url);
      else location.href = url;
    });

    function visit(series, point) {
      var place = middle(point || series);
      highlight([series.dataset.series]);
      mark(point);
      showTooltip(series, point, place.x, place.y);
      readout.textContent = (series.dataset.title || series.dataset.series) +
        (series.dataset.deviceName ? " on " + series.dataset.deviceName : "") + ", " +
        (point ? point.dataset.workload + ": " + reading(point) : series.dataset.note || "no point");
    }

    function step(series, key) {
      var points = pointsOf(series);
      var last = points.length - 1;
      var index = points.indexOf(current);
      if (key === "Home") index = 0;
      else if (key === "End") index = last;
      else index = Math.min(last, Math.max(0, index + (key === "ArrowRight" ? 1 : -1)));
      visit(series, points[index] || null);
    }

    // Where the keyboard meets a series: its line, or its label if nothing of it was drawn.
    var stops = all.map(function (series) {
      var label = chart.querySelector('.legend-label[data-series="' + CSS.escape(series.dataset.series) + '"]');
      return series.querySelector("a[href]") || (label && label.querySelector("a[href]")) || series;
    });

    all.forEach(function (series, position) {
      var stop = stops[position];
      if (stop === series) series.setAttribute("tabindex", "0");
      series.querySelectorAll("path").forEach(widen);
      stop.addEventListener("focus", function () { visit(series, null); });
      stop.addEventListener("blur", clear);
      stop.addEventListener("keydown", function (event) {
        if (event.key === "Escape") return clear();
        if (event.key === "ArrowUp" || event.key === "ArrowDown") {
          stops[(position + (event.key === "ArrowDown" ? 1 : all.length - 1)) % all.length].focus();
        } else if (["ArrowRight", "ArrowLeft", "Home", "End"].includes(event.key)) {
          step(series, event.key);
        } else {
          return;
        }
        event.preventDefault();
      });
    });
  }

  // A thin line is hard to hit: an unseen wide one lies under it.
  function widen(path) {
    if (path.closest("defs")) return;
    var hit = path.cloneNode(false);
    hit.removeAttribute("id");
    hit.setAttribute("class", "hit");
    hit.setAttribute("style", "fill:none;stroke:transparent;stroke-width:14;pointer-events:stroke");
    path.parentNode.insertBefore(hit, path);
  }

  // Not every browser unfolds what a link leads to.
  function unfold() {
    var target = document.querySelector(":target");
    var fold = target && target.closest("details:not([open])");
    for (; fold; fold = fold.parentNode.closest("details:not([open])")) {
      fold.open = true;
      target.scrollIntoView();
    }
  }

  document.addEventListener("DOMContentLoaded", function () {
    document.querySelectorAll("button.theme").forEach(setUpTheme);
    document.querySelectorAll(".chart").forEach(setUpChart);
    if (location.hash) unfold();
    addEventListener("hashchange", unfold);
    document.querySelectorAll("tr[data-series]").forEach(function (row) {
      row.addEventListener("pointerenter", function () { highlight(slugs(row)); });
      row.addEventListener("pointerleave", function () { highlight([]); });
    });
  });
})();
