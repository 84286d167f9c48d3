// The plans beside each other: sorted, filtered, one of them looked at.
import { html, nothing } from "lit-html";
import { repeat } from "lit-html/directives/repeat.js";
import { moreThan, plans, rankName, riskOf, riskShape, shown } from "./answer.js";
import { writeLink } from "./asking.js";
import { card } from "./card.js";
import { dollars, gpuList, hours, percent, seconds, signedPercent } from "./format.js";
import { change, state } from "./store.js";

// A summary's settings: "tp 4", "recompute none", "in groups of 8".
export const settingsOf = (plan) =>
  plan.summary.match(/in groups of \S+|offload(?: [\d.]+)? \w+|(?:tp|pp|dp|vpp|group|cp|ep|etp|mb|x|sharded|recompute) \S+|\S+/g) ?? [];

const BY = {
  rank: () => 0,
  step: (plan) => plan.step_s,
  usd: (plan) => plan.usd,
  hours: (plan) => plan.hours,
  memory: (plan) => plan.memory.reserved_bytes / plan.memory.usable_bytes,
  fits: (plan) => -plan.memory.fit_probability,
};

function wanted() {
  const words = state.filter.trim().toLowerCase().replaceAll("=", " ");
  const value = BY[state.sort.by], found = plans().filter((plan) => holds(plan, words));
  if (state.sort.by !== "rank") found.sort((one, other) => value(one) - value(other));
  return state.sort.down ? found.reverse() : found;
}

// "tp 4" is that setting, not tp 40; anything else may stand anywhere.
const holds = (plan, words) =>
  words.split(/,\s*|\s+(?=[a-z]+\s\d)/).every((part) =>
    /^[a-z]+ \d+$/.test(part) ? settingsOf(plan).includes(part) : `${plan.summary} ${gpuList(plan.gpus)}`.toLowerCase().includes(part));

function heading(by, says, kind = "") {
  const { sort } = state, isBy = sort.by === by;
  const order = isBy ? (sort.down ? "descending" : "ascending") : nothing;
  return html`<th scope="col" class=${kind} aria-sort=${order}>
    <button type="button" @click=${() => change({ sort: { by, down: isBy && !sort.down } })}>${says}${isBy && by !== "rank" ? (sort.down ? " ↓" : " ↑") : ""}</button>
  </th>`;
}

export function choose(rank) {
  change({ plan: rank, zoom: null });
  if (typeof rank === "number") writeLink(rank);
}

export function plansCard() {
  const { answer } = state, all = plans(), money = Boolean(answer.market);
  const low = Math.min(...all.map((plan) => plan.step_s_low)), high = Math.max(...all.map((plan) => plan.step_s_high));
  const several = new Set(all.map((plan) => JSON.stringify(Object.entries(plan.gpus).sort()))).size > 1;
  const rows = wanted();
  const filter = html`<label class="filter"><span class="unseen">Only plans with</span
    ><input type="search" placeholder="only plans with tp=4" .value=${state.filter} autocomplete="off" spellcheck="false"
      @input=${(event) => change({ filter: event.target.value })} /></label>`;
  const table = html`<div class="scroll" tabindex="-1"><table class="plans">
    <thead><tr>
      ${heading("rank", html`<span class="unseen">Rank</span>#`)}
      <th scope="col">Plan <span class="wide-only">(bold where it differs from ${rankName(shown().rank)})</span></th>
      ${several ? html`<th scope="col">GPUs</th>` : nothing}
      ${money ? html`${heading("hours", "Time", "number")}${heading("usd", "Cost", "number")}` : heading("step", "Step", "number")}
      <th scope="col" class="number">vs 1</th>
      ${money ? nothing : html`<th scope="col" class="wide-only">80 % interval</th>`}
      ${heading("memory", "Fullest GPU")}
      ${heading("fits", "Fits", "number")}
    </tr></thead>
    <tbody>${repeat(rows, (plan) => plan.rank, (plan) => row(plan, { low, high, money, several }))}</tbody>
  </table></div>
  ${rows.length ? nothing : html`<p class="note">No plan here has “${state.filter}”. <button type="button" class="link" @click=${() => change({ filter: "" })}>Show all</button></p>`}`;
  return card("Plans", table, { note: answer.answer.ties?.why ?? nothing, tools: filter });
}

function row(plan, { low, high, money, several }) {
  const best = plans()[0], isShown = plan.rank === shown().rank, risk = riskOf(plan);
  const same = new Set(settingsOf(shown()));
  const filled = plan.memory.reserved_bytes / plan.memory.usable_bytes;
  return html`<tr class=${isShown ? "is-shown" : ""} @click=${() => choose(plan.rank)}>
    <td class="rank"><button type="button" data-rank=${plan.rank} aria-current=${isShown ? "true" : nothing} aria-label=${`${rankName(plan.rank)}: ${plan.summary}`}>${plan.rank}</button></td>
    <td class="settings">${settingsOf(plan).map((each) => html`<span class=${same.has(each) ? "same" : "other"}>${each.replaceAll(" ", "\u00a0")}</span> `)}</td>
    ${several ? html`<td class="gpus">${gpuList(plan.gpus)}</td>` : nothing}
    ${money ? html`<td class="number time">${hours(plan.hours)}</td><td class="number cost">${dollars(plan.usd)}</td>` : html`<td class="number step">${seconds(plan.step_s)}</td>`}
    <td class="number versus">${plan === best ? "" : signedPercent(moreThan(plan, best))}</td>
    ${money ? nothing : html`<td class="whisker wide-only">${whisker(plan, low, high)}</td>`}
    <td class="memory">${memoryBar(filled)} <span>${percent(filled)}</span></td>
    <td class=${`number fits ${risk}`}>${riskShape(risk)} ${percent(plan.memory.fit_probability)} <span>${risk}</span></td>
  </tr>`;
}

// The step and its interval on one axis for all rows.
function whisker(plan, low, high) {
  const x = (value) => 5 + ((value - low) / (high - low)) * 96;
  return html`<svg width="106" height="14" aria-hidden="true">
    <line x1=${x(plan.step_s_low)} x2=${x(plan.step_s_high)} y1="7" y2="7" stroke="var(--ink3)" stroke-width="1.5" />
    <circle cx=${x(plan.step_s)} cy="7" r="4" fill="var(--ink)" />
  </svg>`;
}

function memoryBar(filled) {
  const most = 1 - state.answer.request.memory_margin;
  return html`<svg width="72" height="12" aria-hidden="true">
    <rect y="2" width="72" height="8" rx="2" fill="var(--sunk)" />
    <rect y="2" width=${72 * Math.min(filled, 1)} height="8" rx="2" fill="var(--activations)" />
    <rect x=${72 * most} width="1.5" height="12" fill="var(--ink)" />
  </svg>`;
}
