// What is dropped on the page: a model's config, a result of Astra's, or a job that runs today.
import { html, nothing } from "lit-html";
import { Refused, ask } from "./api.js";
import { askNow, forgetAnswer, said, writeLink } from "./asking.js";
import { card } from "./card.js";
import { gibibytes, percent, seconds } from "./format.js";
import { emptyGpu } from "./question.js";
import { notice } from "./search.js";
import { change, draw, state } from "./store.js";

const MOST_BYTES = 4 << 20; // that the server reads

export function listenToDrops() {
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (file) open(file);
  });
}

export const openButton = (id) => html`<label class="button quiet open-file"
  ><input type="file" class="unseen" id=${id} @change=${(event) => { open(event.target.files[0]); event.target.value = ""; }} />Open a file</label
>`;

async function open(file) {
  if (file.size > MOST_BYTES) return notice("This file is larger than the 4 MiB that are read here.");
  const text = await file.text();
  const document = parsed(text);
  if (document?.plans && document.request) return openAnswer(document);
  if (document?.step_parts_s) return openJob(file.name, { plan: document.plan });
  if (document?.pipelines) return openJob(file.name, { plan: document });
  if (document?.hidden_size || document?.architectures || document?.text_config || document?.n_embd) {
    state.question.file = { name: file.name, config: document };
    draw();
    return askNow();
  }
  return openScript(file.name, text);
}

function parsed(text) {
  try {
    const found = JSON.parse(text);
    return found && typeof found === "object" ? found : null;
  } catch {
    return null; // not JSON: a script or a log
  }
}

// A result: shown as it is; its question fills the sentence.
function openAnswer(answer) {
  const { question } = answer.request;
  if (!answer.answer?.title) {
    if (!question) return notice("This result is of an older Astra, and does not say how to ask it again.");
    change({ question: questionOf(question), job: null });
    return askNow();
  }
  if (question) change({ question: questionOf(question) });
  forgetAnswer();
  change({ answer, body: question, plan: 1, beside: null, tried: [], zoom: null, whatIf: {}, error: null, running: null, job: null });
  if (question) writeLink(1);
}

// The words of the server as the sentence has them.
function questionOf({ model, gpus, cluster: _cluster, ...rest }) {
  const found = { model: "", file: null, gpus: [], words: {} };
  if (typeof model === "string") found.model = model;
  else found.file = { name: model.name, config: model };
  found.gpus = (gpus ?? "").split(",").filter(Boolean).map((pool) => {
    const [name, count] = pool.split(":");
    return { ...emptyGpu(), name, count };
  });
  if (!found.gpus.length) found.gpus = [emptyGpu()];
  for (const [name, value] of Object.entries(rest)) {
    const word = value === false ? `no-${name}` : name.replaceAll("_", "-");
    found.words[word] = value === false || value === true ? "true" : Array.isArray(value) ? value.join(" ") : String(value);
  }
  return found;
}

// A launch file knows no GPU types, and often not how many there are: `more` says that.
async function openScript(name, text, more = { gpus: state.question.gpus[0].name || "h100" }) {
  try {
    openJob(name, await ask("import", { name, text, ...more }));
  } catch (error) {
    if (!(error instanceof Refused)) return change({ error: said(error) });
    change({ job: { name, text, more, error: error.message } });
  }
}

// A job as it was read: priced, so that it can be set beside what it does and what could be.
async function openJob(name, job) {
  try {
    change({ job: { name, ...job, predicted: await ask("predict", { plan: job.plan }) } });
  } catch (error) {
    change(error instanceof Refused ? { job: { name, ...job, error: error.message } } : { error: said(error) });
  }
}

export function jobCard() {
  const { job } = state;
  if (!job) return nothing;
  const close = html`<button type="button" class="button" @click=${() => change({ job: null })}>Close</button>`;
  return card(`Your job: ${job.name}`, job.predicted ? read(job) : html`<p class="wrong" role="alert">${job.error}</p>${job.text ? tellMore(job) : nothing}`, {
    note: job.framework ? `Read as a job of ${job.framework}` : nothing,
    tools: close,
    kind: "job",
  });
}

function tellMore({ name, text, more }) {
  const again = (event) => {
    event.preventDefault();
    const { gpus, world_size: all } = Object.fromEntries(new FormData(event.target));
    openScript(name, text, { gpus: gpus.trim(), ...(Number(all) ? { world_size: Number(all) } : {}) });
  };
  return html`<form class="edits" @submit=${again}>
    <label class="edit">GPU type <input name="gpus" size="10" list="gpus-known" autocomplete="off" .value=${more.gpus} /></label>
    <label class="edit">GPUs in all <input name="world_size" size="5" inputmode="numeric" autocomplete="off" .value=${more.world_size ?? ""} /></label>
    <button class="button">Read again</button>
  </form>`;
}

function read(job) {
  const { predicted: plan } = job, { memory } = plan, measured = Number(job.measured_s);
  const put = (event) => change({ job: { ...job, measured_s: event.target.value } });
  return html`<p class="binding"><b>${plan.plan.model.name}</b>, ${plan.summary}, ${plan.plan.global_batch} samples of ${plan.plan.seq_len} tokens a step.</p>
    <table class="measured"><thead><tr><th scope="col"></th><th scope="col" class="number">predicted</th><th scope="col" class="number">measured</th></tr></thead><tbody>
      <tr><th scope="row">a step</th><td class="number">${seconds(plan.step_s)} (${plan.step_s_low.toPrecision(3)} to ${seconds(plan.step_s_high)})</td>
        <td class="number"><label><span class="unseen">measured seconds of a step</span><input inputmode="decimal" size="6" placeholder="seconds" autocomplete="off" .value=${job.measured_s ?? ""} @input=${put} /> s</label></td></tr>
      <tr><th scope="row">fullest GPU</th><td class="number">${gibibytes(memory.reserved_bytes)} of ${gibibytes(memory.usable_bytes)}</td><td></td></tr>
    </tbody></table>
    ${measured > 0 ? html`<p class="verdict">Predicted is ${percent(Math.abs(plan.step_s / measured - 1), 1)} ${plan.step_s < measured ? "less" : "more"} than measured${measured >= plan.step_s_low && measured <= plan.step_s_high ? ", inside of its interval" : ", outside of its interval"}.</p>` : nothing}
    ${listed("Assumed", job.assumed)} ${listed("Not understood", job.not_understood)} ${listed("Its framework will refuse", job.refused)}
    <p class="actions"><button type="button" class="button main" @click=${() => better(job)}>What would be better on these GPUs</button></p>`;
}

const listed = (title, rows) => rows?.length ? html`<details ?open=${title !== "Assumed"}><summary>${title}: ${rows.length}</summary><ul class="listed">${rows.map((each) => html`<li>${each}</li>`)}</ul></details>` : nothing;

// The job's own question, with the job beside its answer.
async function better(job) {
  const { plan } = job.predicted, known = state.known.models.some((each) => each.name === plan.model.name);
  change({
    question: {
      model: known ? plan.model.name : "",
      file: known ? null : { name: plan.model.name, config: plan.model },
      gpus: Object.entries(job.predicted.gpus).map(([name, number]) => ({ ...emptyGpu(), name, count: String(number) })),
      words: { "global-batch": String(plan.global_batch), "seq-len": String(plan.seq_len), precision: plan.precision === "bf16" ? "" : plan.precision },
    },
  });
  await askNow();
  if (state.answer?.plans.length) change({ tried: [{ ...job.predicted, rank: "yours" }], beside: "yours" });
}
