"use strict";
// Shows hints next to the pointer or the focused element; without this script the browser shows the titles.
const tip = document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));
tip.setAttribute("aria-hidden", "true"); // the focused element has the same label
for (const title of document.querySelectorAll("svg.picture * > title")) {
  const owner = title.parentElement;
  owner.dataset.tip = title.textContent;
  if (owner.hasAttribute("role") && !owner.hasAttribute("aria-label")) owner.setAttribute("aria-label", title.textContent);
  title.remove();
}
function show(target, x, y) {
  tip.textContent = target.dataset.tip || target.getAttribute("aria-label");
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18) + "px";
}
const hide = () => (tip.style.display = "none");
addEventListener("pointermove", (event) => {
  const target = event.target.closest && event.target.closest("[data-tip]");
  target ? show(target, event.clientX, event.clientY) : hide();
});
addEventListener("focusin", (event) => {
  const target = event.target;
  if (!target.closest("svg.picture") || !target.matches(":focus-visible")) return hide();
  const box = target.getBoundingClientRect();
  show(target, box.left, box.bottom - 14);
});
addEventListener("focusout", hide);
addEventListener("scroll", hide, { passive: true });
addEventListener("keydown", (event) => event.key === "Escape" && hide());
codeButtons(document, document.body.dataset);
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open]):not(figure details)")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
