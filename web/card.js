// A card: a title, a line about it, tools at its right, and what it shows.
import { html, nothing } from "lit-html";

export const card = (title, body, { note = nothing, tools = nothing, id = nothing, kind = "" } = {}) => html`<section
  class=${`card ${kind}`} id=${id}
>
  <header>
    <div><h2>${title}</h2>${note === nothing ? nothing : html`<p>${note}</p>`}</div>
    ${tools}
  </header>
  ${body}
</section>`;

// A few choices of which one holds.
export const choices = (label, options, now, choose) => html`<div class="choices" role="group" aria-label=${label}>
  ${options.map(([value, says]) => html`<button type="button" aria-pressed=${value === now ? "true" : "false"} @click=${() => choose(value)}>${says}</button>`)}
</div>`;
