// Draws the answers; Python computes every figure and every sentence of an answer.
"use strict";

function show(part) {
  if (part.part === "answer") showAnswer(part);
  else if (part.part === "charts") { fill("charts", part.charts); fill("scaling", ""); showTab(); byId("pictures").classList.remove("stale"); }
  else if (part.part === "whole") showWhole(part);
  else if (part.part === "error") showError(part);
}

// names: the options at which the error is. offers: values that the sentence says to write, as [option, value, its words].
function showError({ sentence, names = [], offers = [], line = "", used: read = {} }) {
  const said = [];
  let rest = sentence;
  for (const [name, value, words] of offers) {
    const at = rest.indexOf(words);
    if (at < 0) continue;
    const flag = names.length === 1 ? "" : words.slice(0, words.length - value.length).replace(/ $/, COLON);  // the only field needs no name
    said.push(rest.slice(0, at) + flag, offerButton(name, value));
    rest = rest.slice(at + words.length);
  }
  said.push(rest);
  byId("error").replaceChildren(...said);
  linkFields(byId("error"));
  if (names.length && !byId("error").querySelector(".link")) {
    const links = names.flatMap((name) => [", ", fieldLink(name, fields[name].label)]);
    byId("error").prepend(...links.slice(1), COLON);
  }
  clearInvalid();
  for (const name of names) fields[name].focused().setAttribute("aria-invalid", "true");
  byId("error").hidden = false;
  markLate(false);
  byId("error").classList.remove("stale");
  byId("loading").hidden = true;
  byId("answer").setAttribute("aria-busy", "false");
  byId("result").classList.add("stale");
  byId("older").hidden = byId("result").hidden || shown === asked;
  clearPending();
  byId("summary").hidden = true;  // the error is in its place
  tellCommand?.(line);
  Object.assign(used, read);
  if (boxes.length) showControls();  // without Python there are none
}
// What an answer has no part of: an error came in between.
function clearPending() {
  for (const name of ["pictures", "changes"]) {
    if (!byId(name).classList.contains("stale")) continue;
    byId(name).classList.remove("stale");
    for (const part of name === "changes" ? [name] : ["charts", "scaling", "tabs"]) byId(part).replaceChildren();
  }
}

function clearInvalid() {
  for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}
// Asks with other values of options.
function take(asks) {
  if (asks.model) delete state.config;
  if (asks.gpus) junk = {};
  Object.assign(state, asks);
  changed();
  byId("answer").focus({ preventScroll: true });
}
function offerButton(name, value) {  // the number of GPUs has a field of its own
  const gpus = name === "gpus" ? parsed(value) : null, title = t("Ask this"), onclick = () => take({ [name]: value });
  return make("button", { type: "button", textContent: gpus && spec({ ...gpus, kind: "" }) === spec({ ...parsed(), kind: "" }) ? gpus.kind : value, title, onclick });
}

let sayTimer, shown = 0;  // shown: the question whose answer is shown
function showAnswer(part) {
  shown = asked;
  markLate(false);
  const figures = labelled(part.figures);  // within a link, so without links
  byId("error").hidden = byId("older").hidden = byId("loading").hidden = true;
  clearInvalid();
  byId("result").hidden = false;
  used = part.used;
  idle = part.idle;
  showControls();
  byId("result").classList.remove("stale");
  byId("verdict").className = part.tone;
  byId("summary").dataset.tone = part.tone;
  byId("verdict").querySelector("h2").textContent = part.verdict;
  byId("verdict").querySelector(".subject").textContent = part.subject;
  for (const name of ["warnings", "lead", "sections", "command"]) fill(name, part[name]);
  for (const name of ["pictures", "changes"]) byId(name).classList.add("stale");  // those of another question, until these come
  for (const name of ["files", "sources"]) byId(name).replaceChildren();
  tellCommand?.(part.line);
  byId("summary").hidden = false;
  byId("summary").replaceChildren(make("b", { textContent: part.short }), make("span", { textContent: figures }));
  clearTimeout(sayTimer);
  sayTimer = setTimeout(() => { byId("live").textContent = `${part.verdict} ${figures}`; }, 700);
}
function fill(name, html) {  // html: blocks of a document, drawn and escaped by Python
  byId(name).innerHTML = html;
  linkFields(byId(name));  // before hints are taken from the titles
  takeTitles(byId(name));
  watchBoxes(byId(name));
  codeButtons(byId(name), { copy: t("Copy"), copied: t("Copied"), failed: t("Not copied"), save: t("Save") });
}

// Shows one of the sections that have charts, each with a tab.
function showTab() {
  const panels = [...document.querySelectorAll("#pictures section")], shown = panels.find((panel) => panel.id === tab) ?? panels[0];
  byId("tabs").replaceChildren(...panels.map((panel) => {
    panel.hidden = panel !== shown;
    panel.role = "tabpanel";
    panel.setAttribute("aria-labelledby", `tab-${panel.id}`);
    const title = panel.querySelector("h2").textContent, onclick = () => { tab = panel.id; showTab(); byId(`tab-${tab}`).focus(); };
    const button = make("button", { type: "button", role: "tab", id: `tab-${panel.id}`, textContent: title, tabIndex: panel.hidden ? -1 : 0, onclick });
    button.setAttribute("aria-selected", !panel.hidden);
    button.setAttribute("aria-controls", panel.id);
    return button;
  }));
}

function showWhole({ changes, options, scaling, sources = "", files }) {
  byId("answer").setAttribute("aria-busy", "false");
  keepFiles();
  fill("files", files);
  fill("changes", changes || `<p class="note">${t("None of the tried changes.")}</p>`);
  for (const code of document.querySelectorAll("#changes td code")) {
    const asks = options[code.textContent], title = t("Ask this");
    if (!asks) continue; // an option of the command alone
    const textContent = Object.entries(asks).map(([name, text]) => `${fields[name].label}${COLON}${text === "yes" ? t("yes") : text}`).join(language === "zh" ? "，" : ", ");
    code.replaceWith(make("button", { type: "button", textContent, title, onclick: () => take(asks) }));
  }
  byId("changes").classList.remove("stale");
  fill("scaling", scaling);
  fill("sources", sources);
  showTab();
}
