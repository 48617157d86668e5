// The controls. Each is a field: an option's label, and the element that takes the focus.
"use strict";

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
