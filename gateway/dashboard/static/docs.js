// Swagger UI over the gateway's own document. Without a validator it asks no other host.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
  dark.addEventListener("change", follow);
  follow();

  // Swagger UI leaves some fields without a name and some scrolling boxes without focus; screen readers and keyboards need them.
  function complete(box) {
    for (const field of box.querySelectorAll("select:not([aria-label]), textarea:not([aria-label]), input:not([aria-label])")) {
      field.setAttribute("aria-label", field.closest("[data-param-name]")?.dataset.paramName ?? (field.placeholder || "Request body"));
    }
    for (const scrolling of box.querySelectorAll(".example:not([tabindex]), pre:not([tabindex])")) scrolling.tabIndex = 0;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const box = document.getElementById("swagger");
    new MutationObserver(() => complete(box)).observe(box, { childList: true, subtree: true });
    SwaggerUIBundle({
      url: box.dataset.document, domNode: box, validatorUrl: null, docExpansion: "none", defaultModelsExpandDepth: -1,
      // Some colors of its highlighted JSON stand out too little.
      syntaxHighlight: false, displayRequestDuration: true, filter: true, presets: [SwaggerUIBundle.presets.apis],
    });
  });
})();
