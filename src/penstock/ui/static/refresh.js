// Replaces the content of the page by that of a new one, every few seconds. The focus and the scroll position stay.
// Without this script the page reloads itself whole (<noscript>).
"use strict";
(() => {
  const seconds = Number(document.body.dataset.refresh);
  const note = document.getElementById("refresh-note");
  let failed = false;

  async function refresh() {
    const main = document.querySelector("main");
    // Do not take the text away from someone who copies it.
    if (document.hidden || !document.getSelection().isCollapsed) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const focused = document.activeElement?.id;
      main.replaceChildren(...page.querySelector("main").childNodes);
      document.title = page.title;
      if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
      if (failed) note.textContent = "";
      failed = false;
    } catch {
      if (!failed) note.textContent = "penstock ui does not answer: what is shown may be old.";
      failed = true;
    }
  }

  if (seconds > 0) setInterval(refresh, seconds * 1000);
})();
