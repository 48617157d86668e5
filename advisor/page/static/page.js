// Asks the question, and starts the page.
"use strict";

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
  lateTimer ??= setTimeout(() => markLate(true), LATE_MS);
  request("answer", question(state), (part) => { if (id === asked) show(part); }, near.map(question));
};

// An answer in sight that is not yet that of the question is dimmed. A quick answer does not flicker.
const LATE_MS = 150;
let lateTimer, resting = "";  // resting: what the status says between questions; "" before the first can be answered
function markLate(isLate) {
  if (!isLate) { clearTimeout(lateTimer); lateTimer = undefined; }
  for (const name of ["result", "summary"]) byId(name).classList.toggle("late", isLate);
  showStatus();
}
function showStatus() {
  if (resting) byId("status").textContent = byId("result").classList.contains("late") ? t("Calculating …") : resting;
}
function rest(status) {
  resting = status;
  showStatus();
}

function loadFailed(reason) {
  const why = navigator.onLine ? `(${reason.split("\n")[0]})` : "(there is no network)";
  showError({ sentence: `Python could not be loaded ${why}. It has 20 MB and is loaded once: reload this page when its server can be reached; after that it works offline.` });
  byId("status").textContent = "Not loaded.";
}
function ready() {
  byId("progress").textContent = t("Calculating …");
  rest(t(mode === "server" ? "Answered by ds-advise on this machine." : "Ready."));
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
    rest(t("Ready. Works offline from now on."));
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
    const about = toCheck();
    request("judge", about, (part) => showFindings(part, about));
  };
  byId("lint-text").oninput = byId("lint-with").onchange = dimFindings;
}

begin();
