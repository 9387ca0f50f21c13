// Beyond htmx: dialogs, copy buttons, the live mark, and a banner for refused requests.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);

  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (opener) byId(opener.dataset.dialog)?.showModal();
    if (event.target.closest("[data-close]")) event.target.closest("dialog")?.close();
    const copy = event.target.closest("[data-copy]");
    if (copy) copyText(copy);
  });

  async function copyText(button) {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select the text";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  // An empty field of the form that tries a model is left out: the model has its own default for it.
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-try]")) return;
    for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
    setTimeout(() => { for (const field of event.target.elements) field.disabled = false; });
  });

  // When htmx sends a form of a dialog, the dialog closes.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target.matches("[data-closes]")) event.target.closest("dialog")?.close();
  });

  const live = (state, word) => {
    const mark = byId(document.querySelector("[data-live]")?.dataset.live ?? "");
    if (!mark) return;
    mark.className = `live ${state}`;
    mark.textContent = word;
  };
  document.addEventListener("htmx:sseOpen", () => live("on", "live"));
  document.addEventListener("htmx:sseMessage", () => live("on", "live"));
  document.addEventListener("htmx:sseError", () => live("off", "reconnecting"));
  document.addEventListener("htmx:sseClose", () => live("off", "not live"));

  document.addEventListener("htmx:responseError", (event) => {
    const text = event.detail.xhr.responseText;
    toast(text.includes("banner") ? new DOMParser().parseFromString(text, "text/html").body.textContent.trim() : "The gateway refused the request.");
  });
  document.addEventListener("htmx:sendError", () => toast("The gateway does not answer."));
  let forget;
  function toast(words) {
    const line = document.createElement("p");
    line.className = "banner bad";
    line.textContent = words;
    byId("toast").replaceChildren(line);
    clearTimeout(forget);
    forget = setTimeout(() => byId("toast").replaceChildren(), 8000);
  }
})();
