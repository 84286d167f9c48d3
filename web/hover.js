// What stands behind a mark: shown beside the pointer or the focus, never the only place of a fact.
let tip = null;

function place(x, y) {
  const { offsetWidth: wide, offsetHeight: high } = tip;
  const above = y + 16 + high > innerHeight ? y - high - 12 : y + 16;
  tip.style.left = `${Math.max(8, Math.min(x, innerWidth - wide - 12))}px`;
  tip.style.top = `${Math.max(8, above)}px`;
}

export function showTip(text, x, y) {
  if (!tip) {
    tip = document.createElement("div");
    tip.className = "tip";
    tip.setAttribute("role", "tooltip");
    document.body.append(tip);
  }
  if (tip.textContent !== text) tip.textContent = text;
  tip.hidden = false;
  place(x, y);
}

export function hideTip() {
  if (tip) tip.hidden = true;
}

const hintOf = (target) => target.closest?.("[data-hint]");

export function hover() {
  addEventListener("pointerover", (event) => {
    const at = hintOf(event.target);
    if (at) showTip(at.dataset.hint, event.clientX, event.clientY);
    else if (!event.target.closest?.("[data-hovers]")) hideTip();
  });
  addEventListener("focusin", (event) => {
    const at = hintOf(event.target);
    if (!at) return hideTip();
    const { left, bottom } = at.getBoundingClientRect();
    showTip(at.dataset.hint, left, bottom - 8);
  });
  addEventListener("focusout", hideTip);
  addEventListener("scroll", hideTip, { passive: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
}
