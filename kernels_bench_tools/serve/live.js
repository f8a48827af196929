// Put into pages by `kbt serve` only: reloads the page when the report has changed, keeps the place in it, and
// says what is wrong. Published pages do not have it.
(() => {
  "use strict";
  const shown = document.currentScript.dataset.version;
  const memory = `kbt-live:${location.pathname}`;
  const colours = { error: "#b3261e", busy: "#3a3f44" };
  let source = null;
  let box = null;

  function folds() {
    return [...document.querySelectorAll("details")];
  }

  function remember() {
    const place = { x: scrollX, y: scrollY, open: folds().map((fold) => fold.open) };
    try {
      sessionStorage.setItem(memory, JSON.stringify(place));
    } catch {
      // Without storage the page starts from its top.
    }
  }

  function restore() {
    let place = null;
    try {
      place = JSON.parse(sessionStorage.getItem(memory));
      sessionStorage.removeItem(memory);
    } catch {
      return;
    }
    if (!place) return;
    const now = folds();
    if (now.length === place.open.length) now.forEach((fold, number) => { fold.open = place.open[number]; });
    scrollTo({ left: place.x, top: place.y, behavior: "instant" });
  }

  function tell(kind, text) {
    if (!text) {
      box?.remove();
      box = null;
      return;
    }
    if (box?.dataset.kind !== kind) {
      box?.remove();
      box = document.createElement("div");
      box.id = "kbt-live";
      box.dataset.kind = kind;
      box.setAttribute("role", kind === "error" ? "alert" : "status");
      Object.assign(box.style, {
        position: "fixed", insetInline: "0", bottom: "0", zIndex: "2147483647", padding: "0.6rem 1rem",
        background: colours[kind], color: "#fff", font: "0.9rem/1.4 ui-monospace, monospace",
        whiteSpace: "pre-wrap", overflowWrap: "anywhere", maxHeight: "50vh", overflowY: "auto",
      });
      document.body.append(box);
    }
    if (box.textContent !== text) box.textContent = text;
  }

  function follow() {
    source?.close();
    source = new EventSource("/.kbt/events");
    source.onmessage = (message) => {
      const state = JSON.parse(message.data);
      if (state.version !== shown) {
        source.close();
        remember();
        location.reload();
      } else if (state.error) {
        tell("error", state.error);
      } else {
        tell("busy", state.busy);
      }
    };
  }

  // A browser has few connections to one server: pages that nobody looks at leave theirs to others.
  function look() {
    if (document.hidden) source?.close();
    else follow();
  }

  addEventListener("load", restore);
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => event.persisted && look());
  document.addEventListener("visibilitychange", look);
  look();
})();
