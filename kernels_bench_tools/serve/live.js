// Added to pages by `kbt serve` only: reloads the page when the report has changed, keeps the scroll position and the
// open sections, and shows errors of the build. Published pages do not have it.
(() => {
  "use strict";
  const version = document.currentScript.dataset.version;
  const memory = `kbt-live:${location.pathname}`;
  const colours = { alert: "#b3261e", status: "#3a3f44" };
  let banner = null;

  function sections() {
    return [...document.querySelectorAll("details")];
  }

  function reload() {
    const position = { x: scrollX, y: scrollY, open: sections().map((section) => section.open) };
    try {
      sessionStorage.setItem(memory, JSON.stringify(position));
    } catch {
      // Without storage the page starts at its top.
    }
    location.reload();
  }

  function restore() {
    let position = null;
    try {
      position = JSON.parse(sessionStorage.getItem(memory));
      sessionStorage.removeItem(memory);
    } catch {
      return;
    }
    if (!position) return;
    const now = sections();
    if (now.length === position.open.length) {
      now.forEach((section, number) => { section.open = position.open[number]; });
    }
    scrollTo({ left: position.x, top: position.y, behavior: "instant" });
  }

  function show(role, text) {
    if (banner?.textContent === text) return;
    banner?.remove();
    banner = null;
    if (!text) return;
    banner = document.createElement("div");
    banner.setAttribute("role", role);
    banner.textContent = text;
    Object.assign(banner.style, {
      position: "fixed", insetInline: "0", bottom: "0", zIndex: "2147483647", padding: "0.6rem 1rem",
      background: colours[role], color: "#fff", font: "0.9rem/1.4 ui-monospace, monospace",
      whiteSpace: "pre-wrap", overflowWrap: "anywhere", maxHeight: "50vh", overflowY: "auto",
    });
    document.body.append(banner);
  }

  async function poll() {
    try {
      const state = await (await fetch("/.kbt/state")).json();
      if (state.version !== version) {
        reload();
        return;
      }
      show(state.error ? "alert" : "status", state.error || state.busy);
    } catch {
      // The server has ended; it may be started again.
    }
    setTimeout(poll, document.hidden ? 5000 : 500);
  }

  addEventListener("load", restore);
  poll();
})();
