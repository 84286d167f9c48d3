// Why this plan, and why not another: its settings as fields; a change is priced or refused.
import { html, nothing } from "lit-html";
import { live } from "lit-html/directives/live.js";
import { ask } from "./api.js";
import { shown } from "./answer.js";
import { card } from "./card.js";
import { explained, sourceOf } from "./details.js";
import { gibibytes, percent, seconds, signedPercent } from "./format.js";
import { jobOf } from "./question.js";
import { change, draw, remote, state } from "./store.js";

const AFTER_LAST_KEY_MS = 250;
const RECOMPUTE = ["none", "selective", "selective:layernorm", "full"];
const SHARDING = ["none", "optimizer", "gradients", "parameters"];

// The settings of a plan that one can try to change, as `astra predict` calls them.
function settingsOf({ plan }) {
  const [segment] = plan.pipelines[0].segments;
  const stages = plan.pipelines[0].segments.reduce((sum, each) => sum + each.stages, 0);
  return {
    tp: segment.tp, pp: stages, vpp: plan.vpp, cp: plan.cp,
    ...(plan.model.moe ? { ep: plan.ep, etp: plan.etp } : {}),
    micro_batch: plan.micro_batch, recompute: segment.recompute, sharding: plan.sharding,
  };
}

let timer = 0;

function edit(name, value) {
  const settings = settingsOf(shown());
  const edits = { ...state.edits, [name]: value };
  for (const each of Object.keys(edits)) if (edits[each] === "" || String(settings[each]) === edits[each]) delete edits[each];
  clearTimeout(timer);
  state.edits = Object.keys(edits).length ? edits : null;
  timer = setTimeout(() => {
    state.tryNow = state.edits;
    draw();
  }, AFTER_LAST_KEY_MS);
  draw();
}

function field(name, now) {
  const value = state.edits?.[name] ?? String(now), isChanged = state.edits?.[name] !== undefined;
  const listed = { recompute: RECOMPUTE, sharding: SHARDING }[name];
  const put = (event) => edit(name, event.target.value.trim());
  return html`<label class=${isChanged ? "edit is-changed" : "edit"}>${name.replace("_", "-")}
    ${listed
      ? html`<select @change=${put}>${[...new Set([...listed, String(now)])].map((each) => html`<option .selected=${each === value}>${each}</option>`)}</select>`
      : html`<input inputmode="numeric" size="3" autocomplete="off" .value=${live(value)} @input=${put} />`}
  </label>`;
}

// The plan with its changes, priced; or why it is refused.
function tried() {
  const settings = { ...settingsOf(shown()), ...state.tryNow };
  const numbers = Object.fromEntries(Object.entries(settings).map(([name, value]) => [name, /^\d+$/.test(value) ? Number(value) : value]));
  const body = { ...jobOf(state.body), gpus: shown().gpus, ...numbers };
  if (body.cluster) delete body.gpus;
  return remote("edited", JSON.stringify(body), (signal) => ask("predict", body, signal));
}

const asSettings = (edits) => Object.entries(edits).map(([name, value]) => `${name}=${value}`).join(" ");

// The best plan that has these settings: a search, so only where this very plan is no answer.
const nearest = () => {
  const body = { ...sourceOf(shown()), against: asSettings(state.tryNow), quick: true };
  return remote("against", `${shown().rank} ${body.against}`, (signal) => ask("explain", body, signal));
};

function verdict() {
  if (!state.edits || state.tryNow !== state.edits) return nothing;
  const found = tried();
  if (found.isOld) return html`<p class="verdict" aria-busy="true">…</p>`;
  if (found.error) {
    return html`<div class="verdict risky-edge" role="status"><p><b class="bad">Refused:</b> ${found.error.message}</p>${mending(found.error)}${nearestLine()}</div>`;
  }
  const plan = found.value, { memory } = plan, slower = plan.step_s / shown().step_s - 1;
  if (!memory.fits) {
    return html`<div class="verdict risky-edge" role="status"><p><b class="bad">Does not fit.</b> Stage ${memory.worst_stage} needs ${gibibytes(memory.reserved_bytes)}
      of ${gibibytes(memory.usable_bytes)}, some of it kept free. It would take ${seconds(plan.step_s)}, ${signedPercent(slower)}.</p>${nearestLine()}${keep(plan)}</div>`;
  }
  return html`<div class="verdict" role="status"><p><b>${seconds(plan.step_s)}</b>, ${signedPercent(slower)}; needs ${gibibytes(memory.reserved_bytes)} and fits with probability
    ${percent(memory.fit_probability)}.</p>${keep(plan)}</div>`;
}

// Values that the rule allows, as buttons.
function mending(error) {
  const ways = (error.facts?.refused ?? []).flatMap((each) => each.try);
  if (!ways.length) return nothing;
  return html`<p class="actions">${ways.flatMap(({ setting, values }) => values.slice(0, 4).map((value) => html`<button type="button" class="button"
    @click=${() => edit(setting.replaceAll("-", "_"), String(value))}>${setting} ${value}</button>`))}</p>`;
}

function nearestLine() {
  const { value, isOld, error } = nearest();
  if (isOld) return html`<p class="note">Looking for the best plan with ${asSettings(state.tryNow)} …</p>`;
  const sentence = error?.message ?? value?.against?.sentence, near = value?.against?.nearest;
  return sentence
    ? html`<p class="note">${sentence}</p>${near ? html`<p class="note">With all of that but one: ${near.summary}, ${seconds(near.step_s)}.</p>` : nothing}`
    : nothing;
}

function keep(plan) {
  const put = () => {
    const rank = `yours ${state.tried.length + 1}`;
    change({ tried: [...state.tried, { ...plan, rank }], plan: rank, edits: null, zoom: null });
  };
  return html`<p class="actions"><button type="button" class="button" @click=${put}>Add to the plans</button></p>`;
}

export function whyCard() {
  const { value, isOld, error } = explained(), plan = shown();
  const isUniform = plan.plan.pipelines.length === 1 && plan.plan.pipelines[0].segments.length === 1;
  return card(
    "Why this one, and why not another",
    html`<p class=${isOld ? "is-old binding" : "binding"}>${error ? error.message : (value?.binding.sentence ?? "…")}</p>
      ${isUniform && state.body
        ? html`<p class="label">Change a setting, and it is priced or refused at once</p>
            <div class="edits">${Object.entries(settingsOf(plan)).map(([name, now]) => field(name, now))}</div>
            ${state.edits ? html`<button type="button" class="link" @click=${() => change({ edits: null })}>Undo</button>` : nothing}
            ${verdict()}`
        : whyNot()}`,
  );
}

// Of a plan over several types: which settings one wonders about, in words.
function whyNot() {
  const put = (event) => {
    event.preventDefault();
    const said = new FormData(event.target).get("against").trim();
    change({ wondered: said });
  };
  const asked = state.wondered
    ? remote("against", `${shown().rank} ${state.wondered}`, (signal) => ask("explain", { ...sourceOf(shown()), against: state.wondered, quick: true }, signal))
    : null;
  return html`<form class="edits" @submit=${put}><label class="edit">Why not <input name="against" placeholder="tp=4 pp=8" size="14" autocomplete="off" /></label>
      <button class="button">Ask</button></form>
    ${asked ? html`<div class="verdict" role="status"><p>${asked.isOld ? "…" : (asked.error?.message ?? asked.value.against?.sentence)}</p></div>` : nothing}`;
}
