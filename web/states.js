// What is seen where there is no finished answer.
import { html, nothing } from "lit-html";
import { askNow, stopSearch } from "./asking.js";
import { card } from "./card.js";
import { count, gibibytes, percent, seconds, unbroken } from "./format.js";
import { openButton } from "./importing.js";
import { EXAMPLES, isMoney } from "./question.js";
import { copy } from "./search.js";
import { change, draw, state } from "./store.js";

const SAID = [
  "llama-3-70b on 512 H100, as fast as possible",
  "llama-3-70b on 256 H100 and 512 A100 together",
  "llama-3-70b, 1 T tokens in 30 days, as cheaply as possible",
];

export const empty = () => card(
  "Begin with one of these, or say your own",
  html`<ul class="examples">
      ${EXAMPLES.map(([, link], row) => html`<li><a href=${`#${link}`}>${SAID[row]}</a></li>`)}
    </ul>
    <p class="drop-here">Drop a config.json, a launch script or a result anywhere, or ${openButton("open-here")}</p>`,
);

// A search under way: the best so far, and how much better anything could be.
export function running() {
  const { running: now } = state;
  if (!now?.isShown) return nothing;
  const best = now.best_step_s, gap = now.gap_fraction;
  const isKnown = best && gap !== null && gap !== undefined;
  const block = html`<section class="running" aria-label="The search goes on">
    <p class="headline" aria-live="polite">${best
      ? html`<b>At most ${seconds(best)} a step</b>${isKnown ? `, and no plan can be under ${seconds(best * (1 - gap))}.` : "."}`
      : html`<b>Searching.</b> ${now.doing ?? "No plan was found yet."}`}</p>
    ${isKnown ? gapBar(best * (1 - gap), best, gap) : nothing}
    <p class="note">${now.clock_s.toFixed(1)} s${now.candidates ? `, ${count(now.candidates)} candidates settled` : ""}</p>
    <p class="actions">
      <button type="button" class="button" id="stop" ?disabled=${!best} @click=${stopSearch}>Stop here</button>
      <span>and keep what is found</span>
      ${now.clock_s > 3 ? quicker() : nothing}
    </p>
  </section>`;
  return state.answer ? html`<div class="over">${block}</div>` : block; // the last answer stays where it is
}

function gapBar(bound, best, gap) {
  return html`<div class="gap">
    <svg width="100%" height="20" aria-hidden="true">
      <line x1="0" x2="100%" y1="10" y2="10" stroke="var(--line2)" stroke-width="2" />
      <rect x="20%" y="4" width=${`${Math.min(60, 600 * gap)}%`} height="12" fill="var(--sunk)" stroke="var(--line2)" />
      <rect x="20%" y="0" width="2" height="20" fill="var(--ink)" />
      <circle cx=${`${20 + Math.min(60, 600 * gap)}%`} cy="10" r="6" fill="var(--ink)" />
    </svg>
    <p><span>bound ${seconds(bound)}</span> <span>gap ${percent(gap, 1)}</span> <b>best so far ${seconds(best)}</b></p>
  </div>`;
}

// The same question with less to look at.
function quicker() {
  const { question } = state, { words } = question;
  const put = (says, set) => html`<button type="button" class="button" @click=${() => { set(); draw(); askNow(); }}>${says}</button>`;
  if (question.gpus.length > 1 && isMoney(question) && words["no-mixed"] !== "true") {
    return put("Without mixed clusters", () => (words["no-mixed"] = "true"));
  }
  if (question.gpus.length > 1) {
    return put(`Only the ${question.gpus[0].name}s`, () => (question.gpus = question.gpus.slice(0, 1)));
  }
  return words["time-limit"] ? nothing : put("At most 5 s", () => (words["time-limit"] = "5"));
}

export function stopped() {
  const { search } = state.answer;
  if (!["time_limit", "cancelled"].includes(search.status)) return nothing;
  const goOn = () => {
    delete state.question.words["time-limit"];
    draw();
    askNow();
  };
  return html`<p class="actions stopped"><span>Everything below belongs to the plan found so far.</span>
    <button type="button" class="button" @click=${goOn}>Go on searching</button></p>`;
}

export function nothingFits() {
  const { nothing_fits: why } = state.answer, closest = why.closest;
  return html`<section class="nothing-fits">
    <h1 class="headline" aria-live="polite"><b>${state.answer.answer.title}</b> ${unbroken(sentenceCase(why.binding))}</h1>
    ${closest ? needed(closest) : nothing}
    ${why.try.length ? html`<h2>What would help</h2><ul class="tries">${why.try.map(attempt)}</ul>` : nothing}
  </section>`;
}

const sentenceCase = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");

function needed({ memory, summary }) {
  const share = memory.usable_bytes / Math.max(memory.reserved_bytes, memory.usable_bytes);
  return html`<div class="needed">
    <svg width="100%" height="22" role="img" aria-label=${`${gibibytes(memory.reserved_bytes)} are needed, ${gibibytes(memory.usable_bytes)} usable`}>
      <rect width="100%" y="3" height="16" rx="2" fill="var(--bad)" />
      <rect width=${`${100 * share}%`} y="3" height="16" rx="2" fill="var(--activations)" />
      <rect x=${`${100 * share}%`} width="2" height="22" fill="var(--ink)" />
    </svg>
    <p><span>limit ${gibibytes(memory.usable_bytes)}</span>
      ${memory.reserved_bytes > memory.usable_bytes ? html`<span class="bad">${gibibytes(memory.reserved_bytes - memory.usable_bytes)} too much</span>` : nothing}</p>
    <p>The closest: ${summary}.</p>
  </div>`;
}

// A suggestion of the search; where it is a count of GPUs, a button does it.
function attempt(says) {
  const found = /^(\d[\d,]*) GPUs/.exec(says);
  if (!found || state.question.gpus.length > 1) return html`<li>${says}</li>`;
  const take = () => {
    state.question.gpus[0].count = found[1].replaceAll(",", "");
    draw();
    askNow();
  };
  return html`<li><button type="button" class="button main" @click=${take}>Try ${found[1]} GPUs</button> <span>${says.slice(found[0].length)}</span></li>`;
}

// Above everything: what is wrong with the server or with us.
export function trouble() {
  const { error } = state;
  if (error?.kind === "gone") {
    return html`<p class="trouble" role="alert">astra serve has ended; your question is in the link.
      <button type="button" class="link" @click=${() => askNow(state.plan)}>Try again</button></p>`;
  }
  if (error?.kind === "busy") {
    return html`<p class="trouble" role="alert">${error.message}
      <button type="button" class="link" @click=${() => askNow(state.plan)}>Ask again</button></p>`;
  }
  if (error?.kind !== "fault") return nothing;
  const details = `${error.message}\n${error.details ?? ""}\n${location.href}`;
  return html`<p class="trouble bad" role="alert">${error.message}
    <button type="button" class="link" @click=${() => copy(details)}>Copy details</button>
    <button type="button" class="link" @click=${() => change({ error: null })}>Close</button></p>`;
}
