// Hours against dollars: the frontier, what would move it, and where the money goes.
import { html, nothing } from "lit-html";
import { ask } from "./api.js";
import { shown } from "./answer.js";
import { card } from "./card.js";
import { answerCharts, chartsOf, numbers, picture, widthOf } from "./charts.js";
import { explained } from "./details.js";
import { dollars, gpuList, hours, percent, shortGpu } from "./format.js";
import { choose } from "./plans.js";
import { draw, remote, state } from "./store.js";

const SLIDER_REST_MS = 600; // a what-if is a search of its own

export function frontierCard() {
  const { answer } = state;
  if (!answer.market || answer.frontier.length < 2) return nothing;
  const charts = { frontier: widthOf("whole") }, other = movedAnswer();
  const found = other ? chartsOf("moved-frontier", said(state.movedTo), other, charts) : answerCharts(charts);
  const press = (event) => {
    const point = event.target.closest("[data-point]");
    if (!point || (event.type === "keydown" && event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    choose(Number(point.dataset.point));
  };
  const table = () => numbers(["plan", "time", "cost", "GPUs"], answer.frontier.map((plan) => [plan.rank, hours(plan.hours), dollars(plan.usd), gpuList(plan.gpus)]));
  return card("Time against money", html`<div class="frontier" @click=${press} @keydown=${press}>${picture("frontier", found, 400, { table })}</div>`, {
    note: "Each point beats every other plan in time or in money; click one to look at it",
  });
}

const CAUSES = {
  training: "training", checkpoints: "writing checkpoints", lost_work: "work lost to failures",
  restarts: "restarting", startup: "starting up", storage: "storage", egress: "data that leaves",
};

export function whereCard() {
  const plan = shown(), { money } = plan;
  if (!money) return nothing;
  const rows = Object.entries(money.usd_by_cause ?? {}).filter(([, cost]) => cost > 0);
  const facts = [
    ...(money.failures_per_hour ? [["a failure every", hours(1 / money.failures_per_hour)]] : []),
    ...(money.checkpoint_interval_s ? [["a checkpoint every", hours(money.checkpoint_interval_s / 3600)]] : []),
    ["a million tokens", dollars(money.usd_per_million_tokens)],
  ];
  return card(
    "Where the money goes",
    html`<table><tbody>
        ${rows.map(([name, cost]) => html`<tr><th scope="row">${CAUSES[name] ?? name}</th><td class="number">${percent(cost / plan.usd, cost > 0.9 * plan.usd ? 1 : 2)}</td><td class="number">${dollars(cost)}</td></tr>`)}
        ${facts.map(([name, value]) => html`<tr><th scope="row">${name}</th><td class="number" colspan="2">${value}</td></tr>`)}
      </tbody></table>
      ${money.rents.map(rent)}`,
    { note: `${dollars(plan.usd_per_hour)} an hour, ${hours(plan.hours)}` },
  );
}

const rent = (each) => html`<p class="note">${each.nodes} × ${each.instance || shortGpu(each.gpu)}${each.cloud === "given" ? "" : `, ${each.cloud} ${each.region}`}:
  ${dollars(each.usd_per_gpu_hour)} an hour of one ${shortGpu(each.gpu)}${each.price_date ? `, list price of ${each.price_date}` : ""}.
  ${each.network_certainty === "high" ? nothing : html`How fast its network is, is <b class="tight">${each.network_certainty === "guessed" ? "a guess" : "little known"}</b>.`}</p>`;

// Notches of a slider: what the question says, and how people read it.
const PRICE = [-50, -40, -30, -20, -10, 0, 10, 20, 30, 40, 50].map((value) => [value ? `${value > 0 ? "+" : ""}${value}%` : "", value ? `${value > 0 ? "+" : "−"}${Math.abs(value)} %` : "as is"]);
const FACTOR = [0.25, 0.5, 1, 2, 4].map((value) => [value === 1 ? "" : `x${value}`, value === 1 ? "as is" : `× ${value}`]);

function sliders() {
  const { answer } = state, names = Object.keys(answer.request.gpus);
  const prices = answer.market ? names.map((name) => [`price.${name}`, `${shortGpu(name)} price`, PRICE]) : [];
  const failures = answer.market ? [["failures", "Failures", FACTOR]] : [];
  return [...prices, ["network", "Network", FACTOR], ...failures];
}

function slider([key, label, notches]) {
  const middle = (notches.length - 1) / 2, now = state.whatIf[key] ?? middle;
  const move = (event) => {
    state.whatIf = { ...state.whatIf, [key]: Number(event.target.value) };
    clearTimeout(timer);
    timer = setTimeout(() => {
      state.movedTo = state.whatIf;
      draw();
    }, SLIDER_REST_MS);
    draw();
  };
  return html`<label class="slider"><span>${label}</span>
    <input type="range" min="0" max=${notches.length - 1} step="1" .value=${String(now)} aria-valuetext=${notches[now][1]} list=${`notches-${notches.length}`} @input=${move} />
    <output>${notches[now][1]}</output></label>`;
}

let timer = 0;

// The change in the words of --what-if; empty where everything is as it is.
const said = (at) => sliders()
  .map(([key, , notches]) => [key, notches[at[key] ?? (notches.length - 1) / 2][0]])
  .filter(([, change]) => change)
  .map(([key, change]) => `${key}=${change}`)
  .join(",");

export function whatIfCard() {
  if (!state.body) return nothing; // an answer from a file that cannot be asked again
  const words = said(state.whatIf), isMoved = state.movedTo === state.whatIf && words;
  return card(
    "What if",
    html`${sliders().map(slider)}
      <datalist id="notches-5"><option value="2"></option></datalist><datalist id="notches-11"><option value="5"></option></datalist>
      <div class="moved" role="status">${isMoved ? moved(words) : words ? html`<p class="note">…</p>` : sensitivities()}</div>
      ${words ? html`<button type="button" class="link" @click=${() => { state.whatIf = {}; draw(); }}>As it is</button>` : nothing}`,
    { note: "Move a price or a fact and see whether the answer holds" },
  );
}

function askMoved(words) {
  const body = { ...state.body, what_if: state.answer.market ? words : words.split(",") };
  return remote("moved", JSON.stringify(body), (signal) => ask("plan", body, signal));
}

// The answer that the sliders lead to, once it is there.
function movedAnswer() {
  const words = said(state.whatIf);
  if (!words || state.movedTo !== state.whatIf) return null;
  const { value, isOld } = askMoved(words);
  return isOld ? null : (value ?? null);
}

function moved(words) {
  const { value, isOld, error } = askMoved(words);
  if (error) return html`<p class="wrong">${error.message}</p>`;
  if (isOld) return html`<p class="note">Searching again with ${words} …</p>`;
  const other = value.market?.what_if ?? value.what_if[0];
  if (!other?.plan) return html`<div class="verdict risky-edge"><p><b>No plan fits then.</b></p></div>`;
  return html`<div class="verdict"><p>${other.same_plan ? html`<b>The answer holds.</b>` : html`<b>Another plan wins:</b> ${gpuList(other.plan.gpus)}, ${other.plan.summary}.`}</p>
    <p class="note">${value.market ? moneyChange(other) : stepChange(other)}</p>${other.frontier?.length ? movedFrontier(other.frontier) : nothing}</div>`;
}

const moneyChange = ({ plan, usd_change: usd, hours_change: time }) => !usd && !time ? "It costs as much and takes as long." :
  `${dollars(plan.usd)}, ${dollars(Math.abs(usd))} ${usd < 0 ? "less" : "more"}; ${hours(plan.hours)}, ${hours(Math.abs(time))} ${time < 0 ? "sooner" : "later"}.`;

const stepChange = ({ plan, step_change_fraction: more }) =>
  `${plan.step_s.toPrecision(3)} s a step${more === null ? "" : `, ${percent(Math.abs(more), 1)} ${more < 0 ? "less" : "more"}`}.`;

const movedFrontier = (points) => html`<details><summary>The whole frontier then</summary><div class="scroll">
  ${numbers(["GPUs", "time", "cost"], points.map((point) => [gpuList(point.gpus), hours(point.hours), dollars(point.usd)]))}</div></details>`;

// From which price on another plan wins, where the explanation says so.
function sensitivities() {
  const lines = (explained().value?.prices ?? []).flatMap(({ gpu, rise_fraction: rise, rise_rival, fall_fraction: fall, fall_rival }) => [
    ...(rise === null || !rise_rival ? [] : [`If ${shortGpu(gpu)}s cost ${percent(rise, 1)} more, ${gpuList(rise_rival.gpus)} win.`]),
    ...(fall === null || !fall_rival ? [] : [`If ${shortGpu(gpu)}s cost ${percent(fall, 1)} less, ${gpuList(fall_rival.gpus)} win.`]),
  ]);
  return html`<p class="note">Everything is as the answer has it. ${lines.join(" ")}</p>`;
}
