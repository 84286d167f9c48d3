// The keyboard: arrows walk the plans, a few letters go to places.
import { html, nothing } from "lit-html";
import { plans, shown } from "./answer.js";
import { choose } from "./plans.js";
import { change, state } from "./store.js";

const KEYS = [
  ["↑ ↓", "walk the plans, where the table has the focus"],
  ["Enter", "look at a plan; in the question: answer at once"],
  ["c", "compare the plan with plan 1"],
  ["/", "to the question"],
  ["e", "to the export"],
  ["Esc", "close"],
  ["?", "this list"],
];

export function keysHelp() {
  if (!state.areKeysOpen) return nothing;
  return html`<div class="keys" role="dialog" aria-modal="false" aria-label="Keys">
    <h2>Keys</h2>
    <dl>${KEYS.map(([key, does]) => html`<dt><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl>
    <button type="button" class="button" id="close-keys" @click=${() => change({ areKeysOpen: false })}>Close</button>
  </div>`;
}

const ACTIONS = {
  "/": () => document.querySelector(".sentence input")?.focus(),
  "?": () => {
    change({ areKeysOpen: !state.areKeysOpen });
    requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById("close-keys")?.focus()));
  },
  e: () => {
    const place = document.getElementById("export");
    place?.scrollIntoView();
    place?.querySelector("button")?.focus({ preventScroll: true });
  },
  c: () => state.answer && shown() !== plans()[0] && change({ beside: shown().rank }),
};

function walk(event) {
  const button = event.target.closest?.("[data-rank]");
  if (!button || !["ArrowDown", "ArrowUp"].includes(event.key)) return;
  event.preventDefault();
  const rows = [...button.closest("tbody").querySelectorAll("[data-rank]")];
  const next = rows[rows.indexOf(button) + (event.key === "ArrowDown" ? 1 : -1)];
  if (!next) return;
  next.focus();
  choose(plans().find((plan) => String(plan.rank) === next.dataset.rank).rank);
}

export function listenToKeys() {
  addEventListener("keydown", (event) => {
    walk(event);
    if (event.key === "Escape") change({ beside: null, areKeysOpen: false });
    const isTyping = event.target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !ACTIONS[event.key]) return;
    event.preventDefault();
    ACTIONS[event.key]();
  });
}
