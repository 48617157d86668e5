// Material draws regions that scroll and the buttons above code in the browser: the first get a tab stop, the second are no landmarks.
new MutationObserver(() => {
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) region.tabIndex = 0;
  for (const buttons of document.querySelectorAll("nav.md-code__nav:not([role])")) buttons.role = "none";
}).observe(document.body, { childList: true, subtree: true });
