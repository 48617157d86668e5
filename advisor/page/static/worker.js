// Runs Python in a worker, which answers one question at a time and stops for a newer one.

const FOLDER = "/lib/ds_advise_package";  // as in memory.mjs
let python, requests, newest = 0;

// Loads a compressed file of a build. The browser revalidates it, so that all files are of the same build.
async function unpacked(name) {
  const response = await fetch(name, { cache: "no-cache" });
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return new Uint8Array(await new Response(response.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}
// All files are requested at once, so that WebAssembly compiles while the memory is unpacked.
const memory = unpacked("python_memory.bin"), archive = unpacked("ds_advise.bin");
const scripts = Promise.all([import("./pyodide.mjs"), import("./pyodide.asm.mjs")]);
for (const awaited of [memory, archive, scripts]) awaited.catch(() => {});  // reported where it is awaited

// Starts Python with the memory saved by the build; if it is missing or fails to load, with fresh imports.
async function loaded() {
  const [{ loadPyodide }, { default: createModule }] = await scripts;
  const createPyodideModule = async (settings) => {
    const module = await createModule(settings), kept = await memory, restore = module.API.restoreSnapshot;
    // Pyodide copies a saved memory into one of the initial size; this enlarges it first.
    const PAGE = 65536, needed = kept.length - kept.length % PAGE;  // a header is before the pages
    while (module.HEAP8.length < needed) module._malloc(needed - module.HEAP8.length);
    module.API.restoreSnapshot = () => restore(kept);
    return module;
  };
  try {
    return await loadPyodide({ _loadSnapshot: new Uint8Array(), createPyodideModule });
  } catch (error) {
    console.warn("everything is imported again:", error.message);
    return loadPyodide();
  }
}

// Writes the files of a tar archive. Pyodide's own unpacking takes half a second.
function write(packed) {
  const BLOCK = 512, text = (at, length) => new TextDecoder().decode(packed.subarray(at, at + length)).split("\0")[0];
  for (let at = 0, size; packed[at]; at += BLOCK + Math.ceil(size / BLOCK) * BLOCK) {
    const path = `${FOLDER}/${text(at, 100)}`;
    size = parseInt(text(at + 124, 12), 8);
    python.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    python.FS.writeFile(path, packed.subarray(at + BLOCK, at + BLOCK + size), { canOwn: true });
  }
}

async function start() {
  python = await loaded();
  write(await archive);
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

// Answers to a slider's next positions, computed ahead: the first part, and the generator of the others.
const ahead = new Map();
const KEPT_AHEAD = 6;

function begin(name, request) {
  const begun = requests.get(name), parts = begun(request);
  begun.destroy();
  return { parts, part: parts.next() };
}

async function lookAhead(near, id) {
  for (const request of near) {
    await turn();
    if (id !== newest) return;
    if (ahead.has(request)) continue;
    ahead.set(request, begin("answer", request));
    const [oldest, { parts }] = ahead.entries().next().value;
    if (ahead.size > KEPT_AHEAD) { ahead.delete(oldest); parts.destroy(); }
  }
}

onmessage = async ({ data: { id, name, request, near = [] } }) => {
  if (name === "answer") newest = id;
  try { await started; } catch { return; }
  try {
    await turn();  // newer messages are received: of a slider's questions only the newest is answered
    if (name === "answer" && id !== newest) return;
    let { parts, part } = ahead.get(request) ?? begin(name, request);
    ahead.delete(request);
    for (; !part.done; part = parts.next()) {
      const shown = JSON.parse(part.value);
      postMessage({ id, part: shown });
      await turn();
      if (shown.part === "charts") { await lookAhead(near, id); await turn(STILL_MS); }
      if (name === "answer" && id !== newest) break;
    }
    parts.destroy();
    postMessage({ id, done: true });
  } catch (error) {
    postMessage({ id, done: true, failed: error.message });
  }
};
