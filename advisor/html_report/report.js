"use strict";
takeTitles(document);
watchBoxes(document);
codeButtons(document, document.body.dataset);
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open]):not(figure details)")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
