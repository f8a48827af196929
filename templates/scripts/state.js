// The theme, and the state of a page: what is shown, and the link that shows it again.
// Every page reads without scripts. These files are one script: build.py puts them into one scope.
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const on = (target, events, listener) => events.split(" ").forEach(event => target.addEventListener(event, listener));
const flag = (element, name, is) => element.classList.toggle(name, !!is);
const say = (element, name, text) => element.setAttribute(name, text);
const slugOf = element => element.dataset.series;
// What an implementation's lines are called in all views.
const keyOf = element => slugOf(element).split("--")[0];
const ofSeries = (kind, slug, within = document) => within.querySelector(`.${kind}[data-series="${CSS.escape(slug)}"]`);

let hidden = new Set(), filtered = new Set(), order = "", metric = "", scale = "";
// What brings charts and tables in line with these.
const draws = [];

const root = document.documentElement;
flag(root, "scripted", true);

// Storage may be forbidden, as it is for some pages opened from disk.
const stored = value => {
  try {
    if (value) localStorage.setItem("kbt-theme", value);
    return localStorage.getItem("kbt-theme");
  } catch { return ""; }
};
const otherTheme = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark")) === "dark" ? "light" : "dark";
if (/^(dark|light)$/.test(stored())) root.dataset.theme = stored();

const setUpTheme = button => {
  const label = () => {
    button.textContent = `${otherTheme() === "light" ? "☀" : "☾"} ${otherTheme()}`;
    say(button, "aria-label", `Use the ${otherTheme()} theme`);
  };
  on(button, "click", () => {
    stored(root.dataset.theme = otherTheme());
    label();
  });
  label();
  button.hidden = false;
};

let form, inputs = [], written;
const chosen = name => inputs.filter(input => input.name === name && input.checked).map(input => input.value);
const isText = input => input.type === "search";

// Fragment: the view's anchor, a question mark, and what differs from how the page opens.
const save = () => {
  const said = new URLSearchParams();
  for (const input of inputs)
    if (input.name !== "view" && (isText(input) ? input.value : input.checked && !input.defaultChecked))
      said.append(input.name, input.value);
  hidden.forEach(key => said.append("hide", key));
  if (order) said.set("sort", order);
  written = `#${chosen("view")}?${said}`;
  // Not history.replaceState, which some engines forbid to pages opened from disk.
  location.replace(written);
};

const restore = () => {
  if (location.hash === written) return;
  const [anchor, query] = location.hash.slice(1).split("?");
  const target = document.getElementById(anchor);
  const said = new URLSearchParams(query);
  for (const input of inputs) {
    const values = said.getAll(input.name);
    if (input.name === "view") input.checked = target ? input.value === target.closest("[data-pick]")?.dataset.pick || input.checked : input.checked;
    // An anchor alone leaves everything else as it is.
    else if (query === undefined) continue;
    else if (isText(input)) input.value = values[0] || "";
    else input.checked = values[0] ? values.includes(input.value) : input.defaultChecked;
  }
  if (query !== undefined) {
    hidden = new Set(said.getAll("hide"));
    order = said.get("sort") || "";
  }
  show();
  if (!target) return;
  for (let fold = target; (fold = fold.closest("details")); fold = fold.parentNode) fold.open = true;
  target.scrollIntoView();
};

// One view at a time: a page of a dozen would bury what was asked for.
const pick = view => {
  const isPicked = part => part.dataset.pick === view;
  for (const part of all("[data-pick]")) {
    flag(part, "unpicked", view && !isPicked(part));
    if (isPicked(part)) part.open = true;
  }
  for (const device of all("section.device")) flag(device, "unpicked", view && !isPicked(device) && !all("[data-pick]", device).some(isPicked));
  for (const link of all(".glance a")) link.ariaCurrent = link.hash === `#${view}` ? "true" : null;
};

const filter = () => {
  const rows = all("tr[data-status]");
  const words = inputs.find(isText).value.toLowerCase().split(" ");
  const fits = (row, name) => !chosen(name)[0] || chosen(name).includes(row.dataset[name]);
  filtered.clear();
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !(words.every(word => text.includes(word)) && fits(row, "family") && fits(row, "status"));
    if (row.hidden) filtered.add(slugOf(row));
  }
  const seen = rows.filter(row => !row.closest(".unpicked"));
  form.querySelector("output").textContent = `${seen.filter(row => !row.hidden).length} of ${seen.length} shown`;
};

const show = () => {
  [metric = ""] = chosen("metric");
  [scale = ""] = chosen("scale");
  if (form) {
    pick(chosen("view")[0]);
    filter();
  }
  draws.forEach(draw => draw());
};

const change = () => {
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
  inputs = all("input", form);
  on(form, "input", change);
  on(form, "submit", event => event.preventDefault());
  on(form, "reset", () => setTimeout(() => {
    hidden.clear();
    order = "";
    change();
  }));
};
