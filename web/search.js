// How the answer was found: where the candidates went, and the command that gives the same.
import { html, nothing } from "lit-html";
import { count, percent, seconds } from "./format.js";
import { change, state } from "./store.js";

const STATUS = {
  proven: "Proven best",
  searched: "Best found",
  work_limit: "Stopped at its limit",
  time_limit: "Stopped at the time limit",
  cancelled: "Stopped",
};

export function funnel() {
  const { search } = state.answer, rules = Object.entries(search.removed_by_rule);
  const removed = rules.reduce((sum, [, number]) => sum + number, 0);
  const rows = [
    [search.candidates, "candidates"],
    [search.candidates - removed, "legal"],
    [search.priced, "not ruled out by a bound"],
    [search.priced - search.out_of_memory, "fit in memory"],
    [search.simulated, "simulated event by event"],
  ];
  const gap = search.gap_fraction ? `, within ${percent(search.gap_fraction, 1)}` : "";
  const most = Math.log(search.candidates + 1);
  return html`<section class="funnel" aria-label="The search">
    <h2><span>${state.answer.plans.length ? STATUS[search.status] : "No plan found"}${gap}</span> <span>${seconds(search.seconds)}</span></h2>
    <ol>
      ${rows.map(([number, says]) => html`<li>
        <b>${count(number)}</b> <span>${says}</span>
        <svg width="100%" height="2" aria-hidden="true"><rect width=${`${Math.max(2, (100 * Math.log(number + 1)) / most)}%`} height="2" fill="var(--ink2)" /></svg>
      </li>`)}
    </ol>
    ${rules.length
      ? html`<details><summary>${rules.length === 1 ? "1 rule binds" : `${rules.length} rules bind`}</summary>
          <ul>${rules.map(([name, number]) => html`<li><code>${name}</code> ${count(number)}</li>`)}</ul></details>`
      : nothing}
  </section>`;
}

export function copyable(label, text, id) {
  return html`<div class="copyable">
    <h3>${label} <button type="button" class="link" aria-describedby=${id} @click=${() => copy(text)}>Copy</button></h3>
    <pre id=${id}>${text}</pre>
  </div>`;
}

export async function copy(text, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
    notice(what);
  } catch {
    notice("The browser does not let this page copy; mark the text and copy it.");
  }
}

let timer = 0;
export function notice(said) {
  clearTimeout(timer);
  change({ said });
  timer = setTimeout(() => change({ said: "" }), 2500);
}

export function commands() {
  const { request } = state.answer;
  if (!request.command) return nothing;
  return html`<section class="commands" aria-label="The same elsewhere">
    ${copyable("The same in a terminal", request.command, "command")}
    ${request.python ? copyable("The same in Python", request.python, "python") : nothing}
  </section>`;
}
