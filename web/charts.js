// Charts come drawn from the server; the page gives them their width, hover, clicks and ways out.
import { html, nothing } from "lit-html";
import { unsafeHTML } from "lit-html/directives/unsafe-html.js";
import { ask } from "./api.js";
import { shown } from "./answer.js";
import { remote, state } from "./store.js";

// The width that a card's content has, of the whole column or of its left or right half.
export function widthOf(place) {
  const isWide = state.width > 1000;
  const column = isWide ? Math.min(1480, state.width) - 328 - 64 : state.width - 36;
  const padding = isWide ? 40 : 32;
  if (!isWide || place === "whole") return Math.max(240, Math.floor(column - padding));
  const share = place === "left" ? 1.45 / 2.45 : 1 / 2.45;
  return Math.floor((column - 20) * share - padding);
}

// Titles inside of a picture become hints that show at once, also for the keyboard where one is clicked.
const withHints = (svg) =>
  (svg.includes(" data-rank=") ? svg.replace('role="img"', 'role="group"') : svg)
    .replace(/(<[a-z]+ [^<>]*)><title>([^<]*)<\/title>/g, '$1 data-hint="$2">')
    .replace(/ data-rank="(\d+)"/g, ' data-point="$1" tabindex="0" role="button" aria-label="plan $1"');

async function drawn(body) {
  const { charts } = await ask("charts", body);
  return Object.fromEntries(Object.entries(charts).map(([name, svg]) => [name, { svg, live: withHints(svg) }]));
}

// Everything that is drawn of the plan that is looked at, in one question.
export function planCharts() {
  const plan = shown(), { answer } = state;
  const charts = { parts: widthOf("whole"), memory: widthOf("left"), pool: widthOf("whole") };
  const { memory_margin } = answer.request;
  const document = plan.rank === 1 && answer.mixed && !answer.market ? { plan: slim(answer, plan) } : { plan, memory_margin };
  return remote("charts", `${plan.rank} ${JSON.stringify(charts)}`, () => drawn({ ...document, charts }));
}

// An answer with one plan of it, for what a picture needs besides the plan.
const slim = (answer, plan) => ({ ...answer, plans: [plan], frontier: [] });

export const answerCharts = (charts) =>
  remote("answer-charts", JSON.stringify(charts), () => drawn({ plan: state.answer, charts }));

export const chartsOf = (place, key, document, charts) =>
  remote(place, `${key} ${JSON.stringify(charts)}`, () => drawn({ plan: document, charts }));

export function timelineChart() {
  const plan = shown(), width = widthOf("whole"), [from_s, to_s] = state.zoom ?? [0, undefined];
  const body = { plan, charts: { timeline: width }, from_s, to_s };
  return remote("timeline", `${plan.rank} ${width} ${from_s} ${to_s}`, () => drawn(body));
}

// A picture of `found` by its name; its place is kept free while it is drawn.
export function picture(name, found, height, options = {}) {
  const chart = found.value?.[name];
  if (found.error) return html`<p class="note bad">${found.error.message}</p>`;
  if (!chart && !found.isOld) return nothing;
  return html`<div class=${`picture ${found.isOld ? "is-old" : ""}`} .style=${`min-height: ${chart ? 0 : height}px`}>
    ${chart ? unsafeHTML(chart.live) : nothing}
  </div>
  ${chart ? waysOut(name, chart.svg, options.table) : nothing}`;
}

const waysOut = (name, svg, table) => html`<div class="ways-out">
  <button type="button" class="link" aria-label=${`${name} as SVG`} @click=${() => save(`${name}.svg`, new Blob([svg], { type: "image/svg+xml" }))}>SVG</button>
  <button type="button" class="link" aria-label=${`${name} as PNG`} @click=${() => savePng(name, svg)}>PNG</button>
  ${table ? html`<details class="as-table"><summary>table</summary><div class="scroll">${table()}</div></details>` : nothing}
</div>`;

export function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Twice its size, so that it is sharp in a document.
async function savePng(name, svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;base64,${btoa(String.fromCharCode(...new TextEncoder().encode(svg)))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * image.width;
  canvas.height = 2 * image.height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => save(`${name}.png`, blob));
}

// Numbers behind a picture.
export const numbers = (heads, rows) => html`<table>
  <thead><tr>${heads.map((head, row) => html`<th scope="col" class=${row ? "number" : ""}>${head}</th>`)}</tr></thead>
  <tbody>${rows.map((cells) => html`<tr>${cells.map((cell, row) => html`<td class=${row ? "number" : ""}>${cell}</td>`)}</tr>`)}</tbody>
</table>`;
