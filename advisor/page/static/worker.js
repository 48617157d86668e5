// Python in a worker: it answers one question at a time, and stops for a newer one.
import { loadPyodide } from "./pyodide.mjs";
import createModule from "./pyodide.asm.mjs";

const FOLDER = "/lib/ds_advise_package";  // as in memory.mjs
let python, requests, newest = 0;

// Files of a build: the browser asks the server for newer ones, so that all are of the same build.
async function built(name) {
  const response = await fetch(name, { cache: "no-cache" });
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response;
}

// Pyodide copies a saved memory into one of the initial size; this enlarges it first.
function withRoom(module, kept) {
  const PAGE = 65536, needed = kept.length - kept.length % PAGE;  // a header is before the pages
  while (module.HEAP8.length < needed) module._malloc(needed - module.HEAP8.length);
  return module;
}

// Python with the memory that the build saved; without it, or where it does not load, a new one that imports.
async function loaded(memory) {
  try {
    const unpacked = (await memory).body.pipeThrough(new DecompressionStream("gzip"));
    const kept = new Uint8Array(await new Response(unpacked).arrayBuffer());
    const createPyodideModule = (settings) => createModule(settings).then((module) => withRoom(module, kept));
    return await loadPyodide({ _loadSnapshot: kept, createPyodideModule });
  } catch (error) {
    console.warn("everything is imported again:", error.message);
    return loadPyodide();
  }
}

async function start() {
  const archive = built("ds_advise.zip"), memory = built("python_memory.bin");
  archive.catch(() => {});  // reported where it is awaited
  python = await loaded(memory);
  python.unpackArchive(await (await archive).arrayBuffer(), "zip", { extractDir: FOLDER });
  python.runPython(`import sys; "${FOLDER}" in sys.path or sys.path.insert(0, "${FOLDER}")`);
  requests = python.pyimport("ds_advise.advisor.page.answers").REQUESTS;
}

const started = start().then(
  () => postMessage({ ready: true }),
  (error) => { postMessage({ failed: error.message }); throw error; },
);
started.catch(() => {});  // reported already
const turn = (after_ms = 0) => new Promise((resolve) => setTimeout(resolve, after_ms));
const STILL_MS = 200;  // changes are computed once a slider rests

onmessage = async ({ data: { id, name, request } }) => {
  if (name === "answer") newest = id;
  try { await started; } catch { return; }
  try {
    await turn();  // newer messages are received: of a slider's questions only the newest is answered
    if (name === "answer" && id !== newest) return;
    const begun = requests.get(name), parts = begun(request);
    begun.destroy();
    for (let part = parts.next(); !part.done; part = parts.next()) {
      const shown = JSON.parse(part.value);
      postMessage({ id, part: shown });
      await turn(shown.part === "pictures" ? STILL_MS : 0);
      if (name === "answer" && id !== newest) break;
    }
    parts.destroy();
    postMessage({ id, done: true });
  } catch (error) {
    postMessage({ id, done: true, failed: error.message });
  }
};
