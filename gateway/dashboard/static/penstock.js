// Beyond htmx: dialogs, copy buttons, the live mark, charts, and a banner for refused requests.
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

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = (values, size) => ({
    stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif", values, size,
  });

  function options(box, unit, xWords) {
    const label = box.dataset.chart === "time" ? box.dataset.label : "run time";
    return {
      width: Math.max(200, box.clientWidth), height: 200, cursor: { y: false }, legend: { show: false }, padding: [10, 12, 0, 0],
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [axis((_, ticks) => ticks.map(xWords), 30), axis((_, ticks) => ticks.map((tick) => `${tick}${unit}`), 56)],
      series: [{}, { label, stroke: color("--accent"), fill: color("--spark"), width: 2, points: { show: box.dataset.chart === "latency", size: 7, fill: color("--accent") } }],
    };
  }

  function time(box) {
    let chart = null;
    async function poll() {
      if (document.hidden) return;
      const answer = await fetch(box.dataset.source, { headers: { "hx-request": "true" } }).catch(() => null);
      if (!answer?.ok) return;
      const points = await answer.json();
      if (!chart) chart = new uPlot(options(box, "", (tick) => (tick === 0 ? "now" : `${tick} s`)), [points.x, points.y], box);
      chart.setData([points.x, points.y]);
    }
    poll();
    setInterval(poll, 2000);
    return () => chart;
  }

  function draw() {
    if (!window.uPlot) return;
    const charts = [...document.querySelectorAll("[data-chart]")].map((box) => [box, time(box)]);
    addEventListener("resize", () => charts.forEach(([box, chart]) => chart()?.setSize({ width: Math.max(200, box.clientWidth), height: 200 })));
  }
  document.addEventListener("DOMContentLoaded", draw);
})();
