// Launch files, seen before they are written; and the whole answer as a file.
import { html, nothing } from "lit-html";
import { ask } from "./api.js";
import { shown } from "./answer.js";
import { askNow } from "./asking.js";
import { card, choices } from "./card.js";
import { save } from "./charts.js";
import { sourceOf } from "./details.js";
import { copyable } from "./search.js";
import { change, draw, remote, state } from "./store.js";

const put = (part) => change({ exporting: { ...state.exporting, ...part } });

// The target that was chosen, else the first that launches this plan's runtime.
function target() {
  const { to } = state.known.choices, { runtime } = shown().plan;
  return to.find((each) => each.name === state.exporting.to) ?? to.find((each) => each.runtime === runtime) ?? to[0];
}

function files() {
  const { launcher } = state.exporting, plan = shown(), to = target().name;
  return remote("export", `${plan.rank} ${plan.summary} ${to} ${launcher}`, () => ask("export", { ...sourceOf(plan), to, launcher, zip: true }));
}

export function exportCard() {
  const { launcher } = state.exporting, { choices: known } = state.known;
  if (!known.to) return nothing;
  const to = target().name, found = files(), launchers = known.launcher.map((name) => [name, name]);
  const tools = html`<button type="button" class="button" @click=${saveAnswer}>Download result.json</button>`;
  return card(
    "Export",
    html`<div class="targets">
        ${choices("target", known.to.map((each) => [each.name, each.called]), to, (name) => put({ to: name, file: null }))}
        ${choices("launcher", launchers, launcher, (name) => put({ launcher: name, file: null }))}
      </div>
      ${found.error ? refused(found.error) : found.value ? folder(found.value, found.isOld) : html`<div class="files" .style=${"min-height: 292px"}></div>`}`,
    { note: "What will be written, before it is written", id: "export", tools },
  );
}

// A plan of another runtime is none of this target's; one search later there is one.
function refused(error) {
  const { called, runtime } = target();
  const again = () => {
    state.question.words.runtime = runtime;
    draw();
    askNow();
  };
  return html`<p class="wrong">${error.message}</p>
    ${runtime === shown().plan.runtime ? nothing : html`<p class="actions"><button type="button" class="button" @click=${again}>Plan again for ${called}</button></p>`}`;
}

function folder(job, isOld) {
  const now = job.files.find((file) => file.name === state.exporting.file) ?? job.files.find((file) => /args|ds_config|recipe|train|accelerate|plan\.py/.test(file.name)) ?? job.files[0];
  return html`<div class=${isOld ? "is-old" : ""}>
    ${[...job.not_expressed, ...job.notes].map((note) => html`<p class="note">${note}</p>`)}
    <div class="files">
      <ul>${job.files.map((file) => html`<li><button type="button" aria-pressed=${file === now ? "true" : "false"} @click=${() => put({ file: file.name })}>${file.name}</button></li>`)}</ul>
      <pre tabindex="0" aria-label=${now.name}>${now.text}</pre>
    </div>
    <div class="actions">
      <button type="button" class="button main" id="download" @click=${() => download(job)}>Download the files</button>
    </div>
    ${copyable("The same in a terminal", command(), "export-command")}
    ${job.next_steps.length ? html`<details><summary>What to do with them</summary><ol class="next">${job.next_steps.map((each) => html`<li>${each}</li>`)}</ol></details>` : nothing}
  </div>`;
}

function command() {
  const { launcher } = state.exporting, { rank } = shown(), to = target().name;
  const which = typeof rank === "number" && rank > 1 ? ` --rank ${rank}` : "";
  return `astra export result.json${which} --to ${to}${launcher === "torchrun" ? "" : ` --launcher ${launcher}`} --out job`;
}

function download(job) {
  const bytes = Uint8Array.from(atob(job.zip), (letter) => letter.charCodeAt(0));
  save(`${target().name}.zip`, new Blob([bytes], { type: "application/zip" }));
}

const saveAnswer = () => save("result.json", new Blob([JSON.stringify(typeof shown().rank === "number" ? state.answer : shown())], { type: "application/json" }));
