// Draws the answers and keeps the question; Python computes every figure and every sentence of an answer.
"use strict";

const byId = (id) => document.getElementById(id);
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const { answers: mode, first } = document.documentElement.dataset;
const language = document.documentElement.dataset.language || (/^zh(-CN|-SG|-Hans.*)?$/i.test(navigator.language) ? "zh" : "en");
const COLON = language === "zh" ? "：" : ": ", EXAMPLE = language === "zh" ? "例如" : "e.g.";
const FIRST = JSON.parse(first), BUILT = JSON.parse(byId("given").textContent);  // BUILT: the build's answer to FIRST, or null
const doubled = (from, to) => { const found = []; for (let size = from; size <= to; size *= 2) found.push(String(size)); return found; };
const SLIDERS = {  // auto: an empty text leaves the value to the advice
  "nodes": { stops: ["1", "2", "3", "4", "6", "8", "12", "16", "32", "64", "128"] },
  "count": { stops: ["1", "2", "3", "4", "5", "6", "7", "8", "16"] },
  "ram": { stops: ["", ...doubled(32, 512).map((size) => `${size}GB`), "768GB", "1TB", "1.5TB", "2TB", "4TB"], unset: "not given" },
  "lora-rank": { stops: doubled(1, 512) },
  "seq-len": { stops: ["512", "1024", "2048", "3072", "4096", "6144", "8192", "12288", ...doubled(16384, 1048576), "max"], auto: true },
  "micro-batch": { stops: ["1", "2", "3", "4", "6", "8", "12", "16", "24", "32", "48", "64", "128", "max"], auto: true },
};
const EXAMPLES = { "price": "$2.49/h", "nvme": "/nvme:2TB", "interconnect": "200Gb/s", "host": "16cores,2xDDR5-5600", "link": "pcie4x8", "software": "transformers=4.45" };
const UNSET = { "lora-targets": "all linear", "threads": "all cores", "lora-dropout": "0", "document-len": "none packed", "sequence-parallel-size": "as needed" };  // in fewer words than the help
let state = {}, dropped = [], options = {}, used = {}, tab = "memory", texts = {}, asked = 0;  // texts: translations by English text without its full stop
const t = (text) => {
  const stop = text.endsWith("."), found = texts[stop ? text.slice(0, -1) : text];
  return found ? `${found}${stop ? "。" : ""}` : text;
};

// The question: texts by option name, kept in the address without defaults.

const fromAddress = (address) => {
  const found = Object.fromEntries(new URLSearchParams(address.hash.slice(1)));
  return found.model || found.config ? { gpus: FIRST.gpus, ...found } : { ...FIRST, ...found };
};
// Leaves out what is no option of the page, such as a misspelt key of a link. A note names what it was.
function useAddress(address) {
  const given = Object.entries(fromAddress(address)), isField = ([name]) => ["model", "config"].includes(name) || Object.hasOwn(options, name);
  state = Object.fromEntries(given.filter(isField).map(([name, text]) => [name, plain(name, text)]));
  dropped = given.filter((entry) => !isField(entry) && entry[1]).map(([name]) => name);
  junk = {};
}
const kept = (given = state) => Object.fromEntries(Object.entries(given).filter(([name, text]) => text && text !== options[name]?.default));
const parsed = (gpus = state.gpus ?? "") => {  // count: of a node
  const [, first, second, kind] = /^(?:(\d+)\s*x\s*)?(?:(\d+)\s*x\s*)?(.*)$/is.exec(gpus);
  return { nodes: second ? first : "1", count: second ?? first ?? "1", kind };
};
const spec = ({ nodes, count, kind }) => `${nodes === "1" ? "" : `${nodes}x`}${count}x${kind}`;
const COUNTS = ["nodes", "count"];  // fields of one option, --gpus
let junk = {}, idle = [], most = {};  // junk: texts of these fields that are no counts, which no option can hold. idle: options that the model cannot have. most: the largest counts
const value = (name) => COUNTS.includes(name) ? junk[name] ?? parsed()[name] : state[name] ?? options[name]?.default ?? "";
const plain = (name, text) => SLIDERS[name]?.auto && /^\s*auto\s*$/i.test(text) ? "" : text.trim();  // auto, as its button says
const having = (name, text) => ({ ...state, ...(COUNTS.includes(name) ? { gpus: spec({ ...parsed(), [name]: text.trim() }) } : { [name]: plain(name, text) }) });
const set = (name, text, near = []) => {
  delete junk[name];
  if (COUNTS.includes(name) && !(/^[1-9]\d{0,5}$/.test(text.trim()) && +text <= most[name])) junk[name] = text.trim();
  else state = having(name, text);
  changed(near.map((next) => having(name, next)));
};

let addressTimer;
const writeAddress = () => history.replaceState(null, "", `#${new URLSearchParams(kept())}`);
function changed(near = [], left = []) {  // near: states that may be asked for next. left: what the address had besides the question
  dropped = left;
  clearTimeout(addressTimer);
  addressTimer = setTimeout(writeAddress, 300);
  showControls();
  ask(near);
}

// The controls. Each is a field: an option's label, and the element that takes the focus.

const fields = {};
function slider(box) {
  const name = box.dataset.slider, { stops, auto } = SLIDERS[name], id = `${name}-value`, unset = t(SLIDERS[name].unset ?? "");
  const label = box.dataset.label ?? labelOf(name);
  const text = make("input", { id, type: "text", placeholder: unset, autocomplete: "off", spellcheck: false });
  const range = make("input", { type: "range", min: 0, ariaLabel: label });
  const back = make("button", { type: "button", textContent: t("auto"), ariaLabel: `${label}${COLON}${t("auto")}`, hidden: true });
  box.append(make("label", { htmlFor: id, textContent: label }), back, text, range);
  text.onchange = () => { set(name, text.value); text.value = value(name); };
  range.oninput = () => {
    const at = +range.value, step = Math.sign(at - box.at), { stops } = box;
    set(name, stops[at], [stops[at + step], stops[at + 2 * step], stops[at - step]].filter((stop) => stop != null));
  };
  back.onclick = () => { set(name, ""); text.focus(); };
  fields[name] = { label, focused: () => text };
  box.show = () => {
    const said = value(name), now = said || (auto ? used[name] || stops[0] : "");
    const place = (text) => size(text === now ? used[name] ?? now : text);  // of 8k that of 8192
    box.stops = stops.includes(now) ? stops : [...stops, now].sort((one, other) => place(one) - place(other));
    range.max = box.stops.length - 1;
    range.value = box.at = box.stops.indexOf(now);
    range.setAttribute("aria-valuetext", said || (auto ? `${now}, ${t("the recommended value")}` : unset));
    back.hidden = !auto || !said;
    if (auto) text.placeholder = used[name] ?? "";
    if (document.activeElement !== text) text.value = said;
  };
}
const size = (text) => text === "" ? -1 : text === "max" ? Infinity : (parseFloat(text) || 0) * (/t/i.test(text) ? 1024 : 1);

function choice(box) {
  const name = box.dataset.choice, label = labelOf(name), legend = make("span", { id: `${name}-label`, className: "label", textContent: label });
  const group = make("div", { className: "segments", role: "radiogroup" });
  group.setAttribute("aria-labelledby", legend.id);
  for (const word of options[name].words) {
    const input = make("input", { type: "radio", name, value: word, onchange: () => set(name, word) });
    group.append(make("label", {}, input, make("span", { textContent: word })));
  }
  box.append(legend, group);
  fields[name] = { label, focused: () => group.querySelector(":checked") ?? group.querySelector("input") };
  box.show = () => { for (const input of group.querySelectorAll("input")) input.checked = input.value === value(name); };
}

function moreOption(name) {
  const { words } = options[name], id = `${name}-option`, label = labelOf(name);
  const input = words.length ? make("select", { id }, ...words.map((word) => make("option", { value: word, textContent: word || t("no") })))
    : make("input", { id, type: "text", autocomplete: "off", spellcheck: false });
  const help = make("small", { id: `${id}-help`, className: "help", textContent: t(options[name].help) });
  input.onchange = () => set(name, input.value);
  input.setAttribute("aria-describedby", help.id);
  fields[name] = { label, focused: () => input };
  const box = make("div", { title: help.textContent }, make("label", { htmlFor: id, textContent: label }), input, help);
  box.show = () => {
    box.hidden = !hasEffect(name);
    const refused = options[name].refused[value("objective")] ?? [];
    for (const option of input.options ?? []) option.hidden = refused.includes(option.value) && option.value !== value(name);
    if (!words.length) input.placeholder = EXAMPLES[name] ? `${EXAMPLE} ${EXAMPLES[name]}` : used[name] ?? t(UNSET[name] ?? options[name].unset);
    if (document.activeElement !== input || words.length) input.value = value(name);
  };
  return box;
}

// A group of `--help` under "More options"; it is hidden if none of its options has an effect.
function moreGroup(title, names) {
  const own = names.map(moreOption), box = make("fieldset", {}, make("legend", { textContent: t(title) }), ...own);
  box.show = () => {
    for (const each of own) each.show();
    box.hidden = own.every((each) => each.hidden);
  };
  return box;
}
// Whether an option has an effect with this model, method and objective. One that is given is shown, so that it can be
// removed.
const hasEffect = (name) => Boolean(kept()[name])
  || !idle.includes(name) && options[name].methods.includes(value("method")) && options[name].objectives.includes(value("objective"));

// Translates the texts and attributes that stand in the page.
function translatePage() {
  document.documentElement.lang = language;
  document.title = t(document.title);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
  while (walker.nextNode()) {
    const node = walker.currentNode, text = node.data?.trim().replace(/\s+/g, " ");
    if (text) node.data = node.data.replace(/\S[^]*\S|\S/, () => t(text));
    for (const name of ["aria-label", "placeholder", "data-label"])
      if (node.hasAttribute?.(name)) node.setAttribute(name, t(node.getAttribute(name)));
  }
}

let boxes = [];
function makeControls(offered) {
  ({ options, texts, most } = offered);
  translatePage();
  byId("models").append(...offered.models.map((name) => make("option", { value: name })));
  byId("kinds").append(...offered.gpus.map((name) => make("option", { value: name })));
  byId("dark").textContent = `@media (prefers-color-scheme: dark) {${offered.dark_rules}}`;
  byId("version").textContent = `ds-advise ${offered.version}.`;
  document.querySelectorAll("[data-slider]").forEach(slider);
  const choices = [...document.querySelectorAll("[data-choice]")];
  choices.forEach(choice);
  const shown = new Set(["gpus", ...Object.keys(SLIDERS), ...choices.map((box) => box.dataset.choice)]);
  const left = Object.entries(offered.groups).map(([title, names]) => [title, names.filter((name) => !shown.has(name))]);
  const more = left.map(([title, names]) => moreGroup(title, names));
  byId("options").append(...more);
  boxes = [...document.querySelectorAll("[data-slider]"), ...choices, ...more];
  for (const [name, id, label] of [["model", "model", "Model"], ["config", "config", "The model's config.json"], ["gpus", "kind", options.gpus.label]])
    fields[name] = { label: t(label), focused: () => byId(id) };
}

// Names of options in sentences: `--micro-batch 4` becomes `"Micro batch": 4`, with a link to the field. Alone in
// parentheses it becomes "change". A flag without a field is one of the terminal's.
const FLAG_NAME = /--([a-z-]+)/, FLAG = /([(（]--[a-z][a-z-]*[)）]|--[a-z][a-z-]*)/;
const labelOf = (name) => {  // translated as a label, or as words in a sentence
  const { label } = options[name], words = /^[A-Z][a-z]+\b/.test(label) ? label[0].toLowerCase() + label.slice(1) : label;
  return t(label) === label && t(words) !== words ? t(words) : t(label);
};
const isValueOf = (name, text) => {  // text: what follows the name: a figure, a placeholder, a path or a known word
  const word = /^ ([^\s,;:.()]+)/.exec(text)?.[1];
  return Boolean(fields[name] && word) && (/^(\d|\/|[A-Z]+\b)/.test(word) || word === "max" || options[name]?.words.includes(word));
};
const quoted = (label) => language === "zh" ? `“${label}”` : `"${label}"`;
const labelled = (text) => text.replace(new RegExp(FLAG_NAME, "g"), (flag, name) => fields[name]?.label ?? flag);
function linkFields(root) {
  for (const flag of root.querySelectorAll(".flag")) flag.replaceWith(flag.textContent);
  root.normalize();
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const { data, parentElement } = walker.currentNode;
    if (!FLAG.test(data) || data.includes("ds-advise ") || parentElement.closest("pre, code")) continue;
    if (parentElement.closest("svg")) walker.currentNode.data = labelled(data);
    else found.push(walker.currentNode);
  }
  for (const part of root.querySelectorAll("svg [aria-label]")) part.setAttribute("aria-label", labelled(part.getAttribute("aria-label")));
  for (const node of found) node.replaceWith(...node.data.split(FLAG).map((text, at, texts) => {
    if (!FLAG.test(text)) return text;
    const name = FLAG_NAME.exec(text)[1], flag = `--${name}`, field = fields[name];
    const title = !field ? text : text === flag ? quoted(field.label) + (isValueOf(name, texts[at + 1]) ? ":" : "") : text.replace(flag, t("change"));
    const link = field ? fieldLink(name, title) : make("code", { textContent: title });
    link.dataset.flag = text;
    return link;
  }));
}
function fieldLink(name, textContent) {
  const { label, focused } = fields[name];
  const onclick = (event) => {
    event.preventDefault();  // the address has the question
    for (let box = focused(); box; box = box.parentElement) {
      if (box.tagName === "DETAILS") box.open = true;
      box.hidden = false;  // an option without an effect, which a sentence names
    }
    focused().focus();
    focused().select?.();
  };
  return make("a", { href: "#question", className: "link", textContent, title: label, onclick });
}
function showControls() {
  byId("dropped").hidden = !dropped.length;
  byId("dropped").textContent = `${t("Left out of the address, since the page has no such option:")} ${dropped.map((name) => name.slice(0, 40)).join(", ")}`;
  for (const box of boxes) box.show?.();
  if (document.activeElement !== byId("model")) byId("model").value = state.config ? "" : state.model ?? "";
  byId("model").placeholder = state.config ? t("the pasted config.json") : "Qwen2.5-14B";
  if (document.activeElement !== byId("config")) byId("config").value = state.config ?? "";
  if (document.activeElement !== byId("kind")) byId("kind").value = parsed().kind;
  document.querySelector("[data-slider=lora-rank]").hidden = !hasEffect("lora-rank");
}

// The answer.

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

// The source of answers: a worker that runs Python, or the local server of `ds-advise page`.

function workerAnswers() {
  const worker = new Worker("worker.js", { type: "module" }), waiting = new Map();
  let id = 0;
  worker.onmessage = ({ data }) => {
    if (data.ready) ready();
    else if (data.failed && !data.id) loadFailed(data.failed);
    else {
      const request = waiting.get(data.id);
      if (data.part) request.onPart(data.part);
      if (data.failed) failed(request.name, `The page itself failed: ${errorLine(data.failed)}`);
      if (data.done) waiting.delete(data.id);
    }
  };
  worker.onerror = (event) => { event.preventDefault(); loadFailed(event.message ?? "the worker did not start"); };
  return (name, request, onPart, near = []) => {
    waiting.set(++id, { name, onPart });
    worker.postMessage({ id, name, request: JSON.stringify(request), near: near.map((next) => JSON.stringify(next)) });
  };
}
function serverAnswers() {
  let stop = new AbortController();
  ready();
  return async (name, request, onPart) => {
    if (name === "answer") { stop.abort(); stop = new AbortController(); }
    const { signal } = name === "answer" ? stop : new AbortController();
    const parts = linesOf(name, request, signal);
    for (;;) {
      let line;
      try { line = await parts.next(); }
      catch { if (!signal.aborted) failed(name, "ds-advise page is no longer running: start it again in its terminal."); return; }
      if (line.done || signal.aborted) return;
      onPart(JSON.parse(line.value));
    }
  };
}
async function* linesOf(name, request, signal) {
  const response = await fetch(`ask/${name}`, { method: "POST", body: JSON.stringify(request), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
    const lines = (text + chunk.value).split("\n");
    text = lines.pop();
    yield* lines;
  }
}
// A failure is shown in place of the answer. Python's exception is the last line that names one; hints may follow it.
const errorLine = (text) => text.trim().split("\n").findLast((line, at) => at === 0 || /^[\w.]+(Error|Exception|Interrupt)\b/.test(line));
const failed = (name, sentence) => name === "judge" ? showFindings({ part: "error", sentence }) : showError({ sentence });
let request, command = Promise.resolve(""), tellCommand;  // command: the question as a line of a terminal; "" if it cannot be asked
const ask = (near = []) => {
  const id = ++asked, question = (options) => ({ state: kept(options), language });
  tellCommand?.("");
  command = new Promise((resolve) => { tellCommand = resolve; });
  const [name, text] = Object.entries(junk).at(-1) ?? [];
  if (name) { showError({ sentence: `'${text}' is not a number of ${name === "nodes" ? "nodes" : "GPUs per node"}. Write a whole number from 1 to ${most[name].toLocaleString("en")}.`, names: [name] }); return; }
  byId("answer").setAttribute("aria-busy", "true");
  byId("error").classList.add("stale");  // that of the question before
  request("answer", question(state), (part) => { if (id === asked) show(part); }, near.map(question));
};

function loadFailed(reason) {
  const why = navigator.onLine ? `(${reason.split("\n")[0]})` : "(there is no network)";
  showError({ sentence: `Python could not be loaded ${why}. It has 20 MB and is loaded once: reload this page when its server can be reached; after that it works offline.` });
  byId("status").textContent = "Not loaded.";
}
function ready() {
  byId("progress").textContent = t("Calculating …");
  byId("status").textContent = t(mode === "server" ? "Answered by ds-advise on this machine." : "Ready.");
}

// Files are saved after the first answer, so that it does not wait for them; the browser asks the server again for each
// file, and the server answers that it has not changed.
let isKept = false;
async function keepFiles() {
  if (isKept || mode !== "worker" || !navigator.serviceWorker) return;
  isKept = true;
  try {
    await navigator.serviceWorker.register("service_worker.js");
    await navigator.serviceWorker.ready;
    byId("status").textContent = t("Ready. Works offline from now on.");
  } catch (error) { console.warn("nothing is kept for offline use:", error.message); }
}

// The reason why this browser or address cannot answer; "" if it can.
function obstacle() {
  if (location.protocol === "file:") {
    const folder = decodeURIComponent(location.pathname).replace(/\/[^/]*$/, "") || "/";
    return `This page was opened as a file, and browsers cannot start Python from files. Serve its folder, python3 -m http.server --directory "${folder}", and open http://localhost:8000; or run ds-advise page.`;
  }
  if (mode === "worker" && typeof WebAssembly !== "object")
    return "This browser has no WebAssembly, or it is switched off, so it cannot run Python. Open the page in another one, or run ds-advise in a terminal.";
  if (mode === "worker" && typeof Worker !== "function") return "This browser has no workers, so it cannot run Python. Open the page in another one.";
  return "";
}

async function begin() {
  const problem = obstacle();
  if (problem) { byId("status").textContent = "Cannot calculate here."; showError({ sentence: problem }); return; }
  request = mode === "worker" ? workerAnswers() : serverAnswers();
  const offer = (choices) => { makeControls(choices); useAddress(location); showControls(); ask(); }, isBuilt = BUILT && language === "en";
  if (isBuilt) offer(BUILT.choices); else request("choices", { language }, offer);
  if (isBuilt && JSON.stringify(kept()) === JSON.stringify(FIRST)) {
    show(BUILT.answer);
    show(BUILT.charts);
    byId("status").textContent = t("Loading Python for other questions (20 MB, once) …");
  }

  byId("model").onchange = () => { delete state.config; set("model", byId("model").value); };
  byId("config").onchange = () => set("config", byId("config").value);
  byId("kind").onchange = () => {
    const text = byId("kind").value.trim(), isWhole = /^\d+\s*x/i.test(text);
    if (isWhole) junk = {};
    state.gpus = isWhole ? text : spec({ ...parsed(), kind: text });
    byId("kind").value = parsed().kind;  // the counts have fields of their own
    changed();
  };
  byId("more").querySelector("summary").onclick = () => requestAnimationFrame(() => { if (byId("more").open) byId("more").scrollIntoView(); });
  byId("question").onsubmit = (event) => event.preventDefault();
  byId("reset").onclick = () => { state = { ...FIRST }; junk = {}; changed(); };
  const copies = (button, title, text) => {
    button.onclick = async () => copyText(await text(), button, { title: t(title), copied: t("Copied"), failed: t("Not copied") });
  };
  copies(byId("share"), "Copy link", () => {
    if (Object.keys(junk).length) return "";
    writeAddress();
    return location.href;
  });
  copies(byId("share-command"), "Copy command", () => command);
  const narrow = matchMedia("(max-width: 860px)");
  const place = () => narrow.matches ? document.querySelector("main").before(byId("error"), byId("summary")) : byId("answer").prepend(byId("error"), byId("summary"));
  narrow.onchange = place;
  place();
  // Beside the question the summary is shown while the verdict is above the screen.
  new IntersectionObserver(([{ isIntersecting, boundingClientRect }]) => byId("summary").classList.toggle("needless", isIntersecting || boundingClientRect.top > 0)).observe(byId("verdict"));
  addEventListener("hashchange", ({ newURL }) => {  // meanwhile the address may be that of the question before
    const address = new URL(newURL);
    if (byId(address.hash.slice(1))) { writeAddress(); return; }  // a place in the page is no question
    useAddress(address);
    changed([], dropped);
  });
  addEventListener("click", (event) => {  // the address has the question, so a link to a place in the page leaves it alone
    const place = byId(event.target.closest?.('a[href^="#"]')?.hash.slice(1) ?? "");
    if (!place || event.defaultPrevented) return;
    event.preventDefault();
    place.focus({ preventScroll: true });
    place.scrollIntoView();
  });
  byId("tabs").onkeydown = ({ key, target }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key], tabs = [...byId("tabs").children];
    if (step) tabs[(tabs.indexOf(target) + step + tabs.length) % tabs.length].click();
  };
  byId("lint-form").onsubmit = (event) => {
    event.preventDefault();
    const text = byId("lint-text").value;
    request("judge", { config: text, state: byId("lint-with").checked ? kept() : null }, (part) => showFindings(part, text));
  };
  byId("lint-text").oninput = dimFindings;
}

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

begin();
