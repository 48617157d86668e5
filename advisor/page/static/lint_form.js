// The form that checks a pasted ds_config.json.
"use strict";

let checked = "";  // the text of the findings that are shown
// Findings of a text that has changed since stay in sight for whoever edits it, but correct nothing.
function dimFindings() {
  const isOld = byId("lint-text").value !== checked;
  byId("findings").classList.toggle("stale", isOld);
  for (const button of byId("findings").querySelectorAll(".correction")) button.disabled = isOld;
}
function rewrite(text) {
  const box = byId("lint-text");
  box.focus();
  box.select();
  if (!document.execCommand("insertText", false, text)) box.value = text;  // a value that is set cannot be undone
}
function showFindings({ part, sentence, findings, corrected, plain }, text = byId("lint-text").value) {
  checked = text;
  fill("findings", findings ?? "");
  const offer = (sentence, title, text) => {
    const onclick = () => { rewrite(text); byId("lint-form").requestSubmit(); };
    if (text) byId("findings").append(make("p", {}, t(sentence), " ", make("button", { type: "button", className: "correction", textContent: t(title), onclick })));
  };
  offer("[*]: can be corrected without a change of the training.", "Correct them", corrected);
  offer("For the Trainer or accelerate:", "Remove the comments", plain);
  if (part === "error") byId("findings").append(make("p", { className: "error", textContent: sentence }));
  linkFields(byId("findings"));
  dimFindings();
  byId("findings").scrollIntoView({ block: "nearest" });
}
