// The answer in the order in which people want it: a sentence, its risk, five figures.
import { html, nothing, svg } from "lit-html";
import { gibibytes, grouped, percent, seconds, signedPercent, count, dollars, hours, unbroken } from "./format.js";
import { change, state } from "./store.js";

// All that can be looked at, best first: of an answer about money every point of the frontier.
export function plans() {
  const { answer, tried } = state;
  const found = answer?.market ? [...answer.frontier].sort((one, other) => one.rank - other.rank) : (answer?.plans ?? []);
  return [...found, ...tried];
}
export const planAt = (rank) => plans().find((plan) => plan.rank === rank);
export const shown = () => planAt(state.plan) ?? plans()[0];
export const rankName = (rank) => (typeof rank === "number" ? `plan ${rank}` : rank);

const RISKS = [
  [0.97, "safe"],
  [0.8, "tight"],
  [0, "risky"],
];
export const riskOf = (plan) => RISKS.find(([least]) => plan.memory.fit_probability >= least)[1];

// Each risk has a shape of its own besides its colour.
const SHAPES = {
  safe: svg`<path d="M2 7.5l3 3L12 3.5" fill="none" stroke="currentColor" stroke-width="2"/>`,
  tight: svg`<path d="M7 1.5l6 11H1z" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linejoin="round"/><path d="M7 5.5v3.2M7 10v1.2" stroke="currentColor" stroke-width="1.6"/>`,
  risky: svg`<path d="M4.2 1.2h5.6l3 3v5.6l-3 3H4.2l-3-3V4.2z" fill="none" stroke="currentColor" stroke-width="1.6"/><path d="M4.7 4.7l4.6 4.6M9.3 4.7l-4.6 4.6" stroke="currentColor" stroke-width="1.6"/>`,
};
export const riskShape = (risk) => html`<svg class="shape" width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">${SHAPES[risk]}</svg>`;

export function headline() {
  const { title, sentence } = state.answer.answer;
  const [, first, rest] = /^(.*?)( (?:on|to train on) .*)$/s.exec(title) ?? [title, title, ""];
  return html`<h1 class="headline" aria-live="polite" data-hint=${sentence}><b>${first}</b>${unbroken(rest)}</h1>
    ${riskLine(plans()[0])}`;
}

function riskLine(best) {
  const { risk, safer } = state.answer.answer;
  return html`<div class="risk">
    <span class=${`pill ${risk}`}>${riskShape(risk)} ${risk}: fits with probability ${percent(best.memory.fit_probability)}</span>
    ${safer
      ? html`<span>${safer.sentence}</span>
          ${planAt(safer.rank) ? html`<button type="button" class="button" @click=${() => change({ plan: 1, beside: safer.rank })}>Compare 1 and ${safer.rank}</button>` : nothing}`
      : nothing}
    ${howSure()}
  </div>`;
}

// A search that was stopped says how far from the best its plan may be.
function howSure() {
  const { status, gap_fraction: gap } = state.answer.search;
  if (!["time_limit", "cancelled"].includes(status)) return nothing;
  return html`<span class="pill tight">${riskShape("tight")} not proven${gap === null ? "" : `: at most ${percent(gap, 1)} from the best`}</span>`;
}

export function figures() {
  const plan = shown(), { memory, provenance } = plan;
  const money = plan.usd !== null && plan.hours !== null;
  return html`<dl class="figures" aria-label=${`Figures of ${rankName(plan.rank)}`}>
    ${money ? figure("Cost", dollars(plan.usd), "", `${plan.usd_low === null ? "" : `${dollars(plan.usd_low)} to ${dollars(plan.usd_high)}; `}${hours(plan.hours)} at ${dollars(plan.usd_per_hour)} an hour`) : nothing}
    ${figure("Step", seconds(plan.step_s), "", `${plan.step_s_low.toPrecision(3)} to ${seconds(plan.step_s_high)} in 8 of 10 runs`)}
    ${figure("Throughput", count(plan.tokens_per_s), "tokens/s", `${grouped(plan.tokens_per_s_per_gpu)} a GPU`)}
    ${figure("Model FLOPs used", percent(plan.mfu_fraction, 1), "", `of the ${plan.plan.precision} peak`)}
    ${figure("Fullest GPU", (memory.reserved_bytes / 2 ** 30).toFixed(1), `of ${gibibytes(memory.usable_bytes)}`, `fits with probability ${percent(memory.fit_probability)}`)}
    ${origins(provenance)}
  </dl>`;
}

const figure = (name, value, unit, below) => html`<div class="figure">
  <dt>${name}</dt>
  <dd><span class="value">${value} <small>${unit}</small></span><span class="below">${below}</span></dd>
</div>`;

function origins({ measured_fraction: measured, fitted_fraction: fitted, guessed_fraction: guessed, notes }) {
  const [one, two] = [100 * measured, 100 * fitted];
  return html`<div class="figure">
    <dt>What this rests on</dt>
    <dd tabindex="0" data-hint=${notes.join("\n")}>
      <svg class="origins" width="100%" height="6" aria-hidden="true">
        <rect width=${`${one}%`} height="6" fill="var(--ink)" />
        <rect x=${`${one}%`} width=${`${two}%`} height="6" fill="var(--ink3)" />
        <rect x=${`${one + two}%`} width=${`${100 - one - two}%`} height="6" class="guessed" />
      </svg>
      <span class="below">${percent(measured)} measured, ${percent(fitted)} fitted, ${percent(guessed)} guessed</span>
    </dd>
  </div>`;
}

// How much more a plan takes of what plans are chosen by: dollars with money, else seconds.
export const moreThan = (plan, best) =>
  state.answer.market && plan.usd !== null ? plan.usd / best.usd - 1 : plan.step_s / best.step_s - 1;

// Which plan the cards below belong to, where it is not the first.
export function chosenLine() {
  const plan = shown(), best = plans()[0];
  if (plan === best) return nothing;
  return html`<div class="chosen">
    <span>Below: <b>${rankName(plan.rank)}</b>, ${plan.summary}, ${signedPercent(moreThan(plan, best))}.</span>
    <button type="button" class="button" @click=${() => change({ beside: plan.rank })}>Compare with 1</button>
    <button type="button" class="button quiet" @click=${() => change({ plan: 1 })}>Back to plan 1</button>
  </div>`;
}
