// Names of options in sentences: `--micro-batch 4` becomes `"Micro batch": 4`, with a link to the field. Alone in
// parentheses it becomes "change". A flag without a field is one of the terminal's.
"use strict";

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
