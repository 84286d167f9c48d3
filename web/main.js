// The page: the question at the left, the answer at the right, drawn anew whenever anything changed.
import { html, nothing, render } from "lit-html";
import { Gone, known } from "./api.js";
import { chosenLine, figures, headline, shown } from "./answer.js";
import { question } from "./ask.js";
import { askNow, said, writeLink } from "./asking.js";
import { card } from "./card.js";
import { hover } from "./hover.js";
import { keysHelp, listenToKeys } from "./keys.js";
import { compareCard } from "./compare.js";
import { changesCard, memoryCard, mixingCard, poolCard, trafficCard } from "./details.js";
import { exportCard } from "./exporting.js";
import { jobCard, listenToDrops, openButton } from "./importing.js";
import { frontierCard, whatIfCard, whereCard } from "./money.js";
import { plansCard } from "./plans.js";
import { EXAMPLES, emptyQuestion, readLink } from "./question.js";
import { commands, copy, funnel, notice } from "./search.js";
import { empty, nothingFits, running, stopped, trouble } from "./states.js";
import { change, draw, drawWith, state } from "./store.js";
import { timelineCard } from "./timeline.js";
import { whyCard } from "./why.js";

const mark = html`<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">
  <path d="M1 3h7v3H1zM5 7.5h7v3H5zM9 12h8v3H9z" fill="currentColor" />
</svg>`;

function top() {
  const here = location.hash.slice(1);
  return html`<header class="top">
    <a class="mark" href="#" @click=${begin}>${mark} astra</a>
    <nav aria-label="Examples">
      ${EXAMPLES.map(([name, link]) => html`<a href=${`#${link}`} aria-current=${here === link ? "page" : nothing}>${name}</a>`)}
    </nav>
    <span class="fill"></span>
    <button type="button" class="button quiet" id="theme" aria-label="light or dark" @click=${switchTheme}>◐</button>
    ${openButton("open")}
    <button type="button" class="button quiet" id="copy-link" @click=${copyLink}>Copy link</button>
    <a class=${`button main ${state.answer?.plans.length ? "" : "is-absent"}`} href="#export" @click=${toExport}>Export</a>
  </header>`;
}

function toExport(event) {
  event.preventDefault(); // the address holds the question
  document.getElementById("export")?.scrollIntoView();
}

function begin(event) {
  event.preventDefault();
  history.replaceState(null, "", location.pathname);
  change({ question: emptyQuestion(), answer: null, error: null });
}

async function copyLink() {
  if (await writeLink()) copy(location.href, "The link is copied; it holds the whole question.");
  else notice("This question is too long for a link. Give the result file instead.");
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

function cards() {
  const { answer, running: now, error } = state;
  if (!answer) return html`<h1 class="unseen">Astra plans the training of large language models</h1>${jobCard()} ${now ? running() : state.job ? nothing : empty()}`;
  const isOld = error?.kind === "refused" || Boolean(now?.isShown);
  return html`${running()}
    <div class=${`cards${isOld ? " is-old" : ""}`} role="group" aria-label="The answer" aria-disabled=${isOld ? "true" : nothing}>
      ${answer.plans.length ? found() : html`${nothingFits()} ${jobCard()}`}
    </div>`;
}

function found() {
  // Asked for first: what is quick. An explanation searches again.
  const [frontier, step, memory, mixing, files] = [frontierCard(), timelineCard(), memoryCard(), mixingCard(), exportCard()];
  return html`<div class="say">${headline()}${stopped()}</div>
    ${chosenLine()} ${figures()} ${jobCard()} ${compareCard()} ${frontier} ${plansCard()} ${poolCard()} ${step}
    <div class="pair">
      <div>${memory} ${changesCard()} ${whereCard()}</div>
      <div>${whyCard()} ${mixing} ${whatIfCard()} ${trafficCard()}</div>
    </div>
    ${files} ${notes()}`;
}

// What the answer took for granted, and what its plans warn of.
function notes() {
  const { request } = state.answer, { warnings, assumed } = shown();
  const all = [...request.notes, ...warnings, ...assumed.map((each) => `Assumed: ${each}`)];
  return all.length ? card("Notes", html`<ul class="listed">${all.map((each) => html`<li>${each}</li>`)}</ul>`) : nothing;
}

function page() {
  const { answer } = state;
  return html`${top()} ${trouble()}
    <main>
      <div class="rail">${question()} ${answer ? html`${funnel()} ${commands()}` : nothing}</div>
      <div class="answer">${cards()}</div>
    </main>
    ${keysHelp()}
    <div class="notice" role="status">${state.said}</div>`;
}

async function openLink() {
  let found;
  try {
    found = await readLink(location.hash);
  } catch {
    return change({ error: { kind: "fault", message: "This link cannot be read; a part of it is missing." } });
  }
  if (!found) return draw();
  change({ question: found.question });
  return askNow(found.plan);
}

function learn(name, path, rows) {
  known(path).then(
    (answer) => change({ known: { ...state.known, [name]: rows(answer) } }),
    (error) => error instanceof Gone && change({ error: said(error) }),
  );
}

// An answer that cannot be drawn is our fault; the page lives on without it.
function drawAll() {
  try {
    render(page(), document.body);
  } catch (error) {
    console.error(error);
    if (state.answer || state.job) change({ answer: null, job: null, running: null, error: said(error) });
  }
}

drawWith(drawAll);
addEventListener("unhandledrejection", ({ reason }) => change({ error: said(reason) }));
addEventListener("hashchange", openLink);
new ResizeObserver(([entry]) => change({ width: Math.floor(entry.contentRect.width / 20) * 20 })).observe(document.body);
listenToKeys();
listenToDrops();
hover();
openLink();
learn("models", "models", (answer) => answer.models);
learn("gpus", "gpus", (answer) => answer.gpus);
learn("prices", "prices", (answer) => answer.offers);
learn("choices", "choices", (answer) => answer);
