// Shows the titles of a chart's parts next to the pointer or the focused part; without this script the browser shows them.
const hint = document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));
hint.setAttribute("aria-hidden", "true"); // the focused element has the same label
function takeTitles(root) {
  for (const title of root.querySelectorAll("svg.picture * > title")) {
    const owner = title.parentElement;
    owner.dataset.tip = title.textContent;
    if (owner.hasAttribute("role") && !owner.hasAttribute("aria-label")) owner.setAttribute("aria-label", title.textContent);
    title.remove();
  }
}
function showHint(target, x, y) {
  hint.textContent = target.dataset.tip || target.getAttribute("aria-label");
  hint.style.display = "block";
  const box = hint.getBoundingClientRect();
  hint.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
  hint.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18) + "px";
}
const hideHint = () => (hint.style.display = "none");
addEventListener("pointermove", (event) => {
  const target = event.target.closest && event.target.closest("[data-tip]");
  target ? showHint(target, event.clientX, event.clientY) : hideHint();
});
function showFocused() {
  const target = document.activeElement, picture = target && target.closest("svg.picture");
  if (!picture || !target.matches(":focus-visible")) return hideHint();
  const box = target.getBoundingClientRect(), whole = picture.getBoundingClientRect();
  showHint(target, box.left, whole.bottom - 14);  // the other rows stay in sight
  const tall = hint.getBoundingClientRect().height;
  if (whole.bottom + 4 + tall > innerHeight) hint.style.top = Math.max(4, whole.top - tall - 4) + "px";
}
addEventListener("focusin", showFocused);
addEventListener("focusout", hideHint);
addEventListener("scroll", showFocused, { passive: true }); // a focused part scrolls into sight, and keeps its hint
addEventListener("keydown", (event) => event.key === "Escape" && hideHint());
// A box that does not scroll is no stop of the Tab key.
const watched = new ResizeObserver((entries) => {
  for (const { target: box } of entries)
    box.tabIndex = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight ? 0 : -1;
});
function watchBoxes(root) {
  for (const box of root.querySelectorAll("pre[tabindex], .scroll[tabindex]")) watched.observe(box);
}
