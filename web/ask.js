// The question: a sentence whose words are fields, and below it what is taken for granted.
import { html, nothing } from "lit-html";
import { live } from "lit-html/directives/live.js";
import { repeat } from "lit-html/directives/repeat.js";
import { askNow, askSoon } from "./asking.js";
import { bytes, count, dollars, grouped } from "./format.js";
import { emptyGpu, isMoney } from "./question.js";
import { change, draw, state } from "./store.js";
import { MORE, withoutCommas } from "./words.js";

// A field of the sentence. The server names the word that is wrong; its message stands below it.
function token(name, label, value, set, options = {}) {
  const isWrong = isAbout(name);
  return html`<label class="token"
    ><span class="unseen">${label}</span
    ><input
      id=${options.id ?? name}
      .value=${live(value)}
      size=${Math.max(2, value.length || (options.hole ?? "").length)}
      placeholder=${options.hole ?? ""}
      list=${options.list ?? nothing}
      inputmode=${options.inputmode ?? nothing}
      autocomplete="off"
      spellcheck="false"
      aria-invalid=${isWrong ? "true" : nothing}
      aria-describedby=${isWrong ? "wrong" : nothing}
      @input=${(event) => typed(() => set(event.target.value))}
  /></label>`;
}

function typed(put) {
  put();
  draw();
  askSoon();
}

const isAbout = (...names) =>
  state.error?.kind === "refused" && names.some((name) => state.error.field === name.replaceAll("-", "_"));

const word = (name, label, options) =>
  token(name, label, state.question.words[name] ?? "", (value) => (state.question.words[name] = value), options);

const GOALS = [
  ["time", "as fast as possible"],
  ["money", "as cheaply as possible"],
  ["gpus", "on the fewest GPUs"],
  ["energy", "with the least energy"],
];

function goal() {
  const { words } = state.question;
  const now = isMoney(state.question) ? "money" : words.objective || "time";
  return html`<label class="token"
    ><span class="unseen">goal</span
    ><select
      id="goal"
      @change=${(event) => {
        const wanted = event.target.value;
        words.objective = wanted === "time" ? "" : wanted;
        if (wanted !== "money") words.budget = words.deadline = "";
        draw();
        askNow();
      }}
    >
      ${GOALS.map(([value, says]) => html`<option value=${value} .selected=${value === now}>${says}</option>`)}
    </select></label
  >`;
}

function gpuFields() {
  const { gpus } = state.question;
  return repeat(
    gpus,
    (gpu) => gpu,
    (gpu, row) => html`<span class="phrase">${row ? "and " : "on up to "}${token(
        "count", `how many of type ${row + 1}`, gpu.count, (value) => (gpu.count = value),
        { id: `count-${row}`, hole: "how many", inputmode: "numeric" },
      )} × ${token("gpus", `GPU type ${row + 1}`, gpu.name, (value) => (gpu.name = value), {
        id: `gpu-${row}`, hole: "GPU", list: "gpus-known",
      })}${gpus.length > 1
        ? html`<button type="button" class="small-button" aria-label=${`without ${gpu.name || "this type"}`}
            @click=${() => { state.question.gpus = gpus.filter((each) => each !== gpu); draw(); askNow(); }}>−</button>`
        : nothing}${row === gpus.length - 1
        ? html`<button type="button" class="small-button" aria-label="another GPU type"
            @click=${() => { gpus.push(emptyGpu()); draw(); requestAnimationFrame(() => document.getElementById(`gpu-${row + 1}`)?.focus()); }}>+</button>`
        : nothing}</span> `,
  );
}

function model() {
  const { question } = state;
  if (!question.file) {
    return token("model", "model", question.model, (value) => (question.model = value), { hole: "a model", list: "models-known" });
  }
  return html`<b>${question.file.name}</b> <button type="button" class="small-button" aria-label="without this file"
      @click=${() => { question.file = null; draw(); askNow(); }}>×</button>`;
}

function sentence() {
  const money = isMoney(state.question), fewest = state.question.words.objective === "gpus";
  return html`<div class="sentence">
    <span class="phrase">Train ${model()}</span>
    ${wrong("model")}
    ${money ? html`<span class="phrase">on ${word("tokens", "tokens to train on", { hole: "1T" })} tokens</span>` : nothing}
    ${gpuFields()} ${wrong("gpus")}
    <span class="phrase">with ${word("global-batch", "samples a step", { hole: "1024", inputmode: "numeric" })} samples</span>
    <span class="phrase">of ${word("seq-len", "tokens a sample", { hole: "4096" })} tokens a step,</span>
    ${wrong("global_batch", "seq_len")}
    <span class="phrase">${goal()}${money || fewest ? "" : "."}</span>
    ${fewest
      ? html`<span class="phrase">that reach ${word("min-tokens-per-s", "tokens a second", { hole: "any" })} tokens/s.</span>`
      : nothing}
    ${money
      ? html`<span class="phrase">within ${word("deadline", "deadline", { hole: "any time" })}</span>
          <span class="phrase">for ${word("budget", "budget in US dollars", { hole: "any money" })}.</span>`
      : nothing}
  </div>`;
}

const IN_SENTENCE = ["model", "gpus", "global_batch", "seq_len"];

// What is wrong, below the field that it is about, with what may have been meant as buttons.
function wrong(...fields) {
  const { error } = state;
  const isHere = fields.length ? fields.includes(error?.field) : !IN_SENTENCE.includes(error?.field);
  if (error?.kind !== "refused" || !isHere) return nothing;
  return html`<span class="wrong" id="wrong" role="alert">
    ${error.message}
    ${error.suggestions?.length && canTake(error.field)
      ? html`<br />${error.suggestions.map((each) => html`<button type="button" class="link" @click=${() => takeSuggestion(each)}>${each}</button> `)}`
      : nothing}
  </span>`;
}

const canTake = (field) => ["model", "gpus"].includes(field) || MORE.some(([, words]) => words.some(({ name }) => name.replaceAll("-", "_") === field));

function takeSuggestion(value) {
  const { question, error } = state;
  if (error.field === "model") question.model = value;
  else if (error.field === "gpus") {
    const wrongOne = question.gpus.find((gpu) => error.message.includes(`'${gpu.name.trim()}'`)) ?? question.gpus[0];
    wrongOne.name = value;
  } else question.words[error.field.replaceAll("_", "-")] = value;
  draw();
  askNow();
}

// One word of the command line as a small field, with its name and what it is about.
function moreField({ name, about, example, kind }) {
  const { words } = state.question, id = `more-${name}`;
  const set = (value) => typed(() => (words[name] = value));
  const isWrong = isAbout(name);
  if (kind === "flag") {
    return html`<label class="more-flag"><input type="checkbox" id=${id} .checked=${words[name] === "true"}
      @change=${(event) => set(event.target.checked ? "true" : "")} /> <code>--${name}</code> <span>${about}</span></label>`;
  }
  const field = kind === "choice"
    ? html`<select id=${id} aria-invalid=${isWrong ? "true" : nothing} @change=${(event) => set(event.target.value)}>
        <option value="" .selected=${!words[name]}>as usual</option>
        ${(state.known.choices[name] ?? []).map((value) => html`<option value=${value} .selected=${words[name] === value}>${value}</option>`)}
      </select>`
    : html`<input id=${id} .value=${live(words[name] ?? "")} placeholder=${example} autocomplete="off" spellcheck="false"
        aria-invalid=${isWrong ? "true" : nothing} @input=${(event) => set(event.target.value)} />`;
  return html`<label class="more-field"><span><code>--${name}</code> ${about}</span>${field}</label>`;
}

function more() {
  const open = (event) => change({ isMoreOpen: event.target.open });
  return html`<details class="more" ?open=${state.isMoreOpen} @toggle=${open}>
    <summary>${granted()}<span class="more-word">more</span></summary>
    ${state.isMoreOpen
      ? MORE.map(([title, words]) => html`<fieldset><legend>${title}</legend>${words.map(moreField)}</fieldset>`)
      : nothing}
  </details>`;
}

// What holds without being said, of the last answer.
function granted() {
  const request = state.answer?.request;
  if (!request) return nothing;
  const runtime = (request.runtimes ?? []).join(", ");
  const facts = [request.precision, runtime, `${Math.round(100 * request.memory_margin)}\u00a0% memory kept free`];
  return facts.filter(Boolean).map((fact) => html`<span class="fact">${fact}</span>`);
}

// What is known of a GPU type: its memory, its node and its price, where they may be changed.
function gpuNodes() {
  const rows = state.question.gpus.filter((gpu) => knownGpu(gpu));
  return html`<details class="nodes"><summary>Nodes and prices</summary>${rows.length ? rows.map(gpuNode) : html`<p class="note">Name a GPU first.</p>`}</details>`;
}

const spoken = (name) => name.toLowerCase().replace(/[^a-z0-9]/g, "");

const knownGpu = (gpu) => {
  const said = spoken(gpu.name);
  const named = state.known.gpus.find((each) => [each.name, ...each.aliases].some((name) => spoken(name) === said));
  return named ?? (said ? state.known.gpus.find((each) => spoken(each.name).startsWith(said) && each.name.includes("SXM")) : undefined);
};

// The cheapest list price of a type.
const offerOf = ({ name }) => state.known.prices.find((each) => each.gpu === name);

function gpuNode(gpu) {
  const facts = knownGpu(gpu);
  const offer = offerOf(facts);
  const perNode = Number(gpu.node.gpus_per_node) || facts.node.gpus;
  const nodes = Number(withoutCommas(gpu.count)) / perNode;
  const field = (label, value, hole, set) => html`<label>${label}<input .value=${live(value)} placeholder=${hole}
    autocomplete="off" @input=${(event) => typed(() => set(event.target.value))} /></label>`;
  return html`<fieldset>
    <legend>${facts.name}</legend>
    <p>${bytes(facts.memory_bytes)} each${Number.isFinite(nodes) && nodes ? `; ${grouped(Math.ceil(nodes))} nodes of ${perNode}` : ""}.
      ${offer ? `Cheapest: ${dollars(offer.usd_per_gpu_hour)} an hour, ${offer.cloud} ${offer.region}, ${offer.date}.` : "No price is known."}</p>
    ${field("$ an hour of one", gpu.price, offer ? String(offer.usd_per_gpu_hour) : "2.49", (value) => (gpu.price = value))}
    ${field("GPUs a node", gpu.node.gpus_per_node ?? "", String(facts.node.gpus), (value) => (gpu.node.gpus_per_node = value))}
    ${field("network of one GPU", gpu.node.nic_bytes_per_s ?? "", `${count((facts.node.nic_bytes_per_s * 8) / 1e9)} Gbps`, (value) => (gpu.node.nic_bytes_per_s = value))}
  </fieldset>`;
}

const lists = () => html`<datalist id="models-known">
    ${state.known.models.map((each) => html`<option value=${each.name}>${count(each.parameters)} parameters</option>`)}
  </datalist>
  <datalist id="gpus-known">
    ${state.known.gpus.map((each) => html`<option value=${each.name}>${bytes(each.memory_bytes)}${offerOf(each) ? `, from ${dollars(offerOf(each).usd_per_gpu_hour)} an hour` : ""}</option>`)}
  </datalist>`;

export const question = () => html`<form
  class="question"
  aria-label="The question"
  @submit=${(event) => { event.preventDefault(); askNow(); }}
>
  ${sentence()} ${wrong()} ${gpuNodes()} ${more()} ${lists()}
  <button class="unseen" tabindex="-1" aria-hidden="true">Ask</button>
</form>`;
