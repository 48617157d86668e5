// The question: texts by option name, kept in the address without defaults; and what every file of the page uses.
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
const plain = (name, text) => {  // a stop in any case, such as MAX; auto, as its button says
  const word = text.trim().toLowerCase(), { stops = [], auto } = SLIDERS[name] ?? {};
  return auto && word === "auto" ? "" : stops.find((stop) => stop.toLowerCase() === word) ?? text.trim();
};
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
  dimFindings();
  ask(near);
}
