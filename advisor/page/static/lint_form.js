// The form that checks a pasted ds_config.json.
"use strict";

// What is checked: a text, for the question above or for none.
const toCheck = () => ({ config: byId("lint-text").value, state: byId("lint-with").checked ? kept() : null });
let checked = "";  // that of the findings that are shown, as JSON
// Findings of what has changed since stay in sight for whoever edits it, but correct nothing.
function dimFindings() {
  const isOld = JSON.stringify(toCheck()) !== checked;
  byId("findings").classList.toggle("stale", isOld);
  for (const button of byId("findings").querySelectorAll(".correction")) button.disabled = isOld;
}
function rewrite(text) {
  const box = byId("lint-text");
  box.focus();
  box.select();
  if (!document.execCommand("insertText", false, text)) box.value = text;  // a value that is set cannot be undone
}
function showFindings({ part, sentence, findings, corrected, plain }, about = toCheck()) {
  checked = JSON.stringify(about);
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
