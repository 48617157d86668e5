// Python in a worker: it answers one question at a time, and leaves one for a newer.
import { loadPyodide } from "./pyodide.mjs";

const cacheName = `ds-advise-${new URL(location).searchParams.get("build")}`;
const FILES = "/lib/ds_advise_package";
let python, hasFiles = false, isSnapshotKept = false, newest = 0;

// The interpreter's memory after the first answer, kept in the browser's cache: a later visit goes on from there,
// instead of importing everything again. Without a cache (an address that is not secure) every visit imports.
async function keptSnapshot() {
  try {
    const found = await (await caches.open(cacheName)).match("snapshot");
    return found && new Uint8Array(await found.arrayBuffer());
  } catch { return undefined; }
}

async function keepSnapshot() {
  if (isSnapshotKept || !self.caches) return;
  isSnapshotKept = true;
  try {
    await (await caches.open(cacheName)).put("snapshot", new Response(python.makeMemorySnapshot()));
  } catch (error) { console.warn("the next visit will import everything again:", error.message); }
}

async function unpackFiles(fetched) {
  if (hasFiles) return;
  const response = await (fetched ?? fetch("ds_advise.zip"));
  if (!response.ok) throw new Error(`ds_advise.zip: ${response.status}`);
  python.unpackArchive(await response.arrayBuffer(), "zip", { extractDir: FILES });
  hasFiles = true;
}

async function start() {
  const snapshot = await keptSnapshot();
  if (snapshot) {
    try {
      python = await loadPyodide({ _loadSnapshot: snapshot });
      isSnapshotKept = true;
      return;
    } catch (error) {
      console.warn("the kept memory does not fit:", error.message);
      await (await caches.open(cacheName)).delete("snapshot");
    }
  }
  const fetched = fetch("ds_advise.zip");
  fetched.catch(() => {});  // told where it is waited for
  python = await loadPyodide({ _makeSnapshot: true });
  postMessage({ progress: "Loading the advice …" });
  await unpackFiles(fetched);
  python.runPython(`
import sys
sys.path.insert(0, "${FILES}")
from ds_advise.advisor.page.answers import REQUESTS
def begun(name, request):
    return REQUESTS[name](request)
`);
}

const started = start().then(
  () => postMessage({ ready: true }),
  (error) => { postMessage({ failed: error.message }); throw error; },
);
started.catch(() => {});  // told already
const turn = (after_ms = 0) => new Promise((resolve) => setTimeout(resolve, after_ms));
const STILL_MS = 200;  // who drags has moved on by then; what would change the answer is asked for one who rests

onmessage = async ({ data: { id, name, request } }) => {
  if (name === "answer") newest = id;
  try { await started; } catch { return; }
  try {
    await turn();  // what came meanwhile is seen: of a slider's many questions the newest alone is answered
    if (name === "judge") await unpackFiles();
    if (name === "answer" && id !== newest) return;
    const begun = python.globals.get("begun"), parts = begun(name, request);
    begun.destroy();
    let isWhole = true;
    for (let part = parts.next(); !part.done; part = parts.next()) {
      const shown = JSON.parse(part.value);
      postMessage({ id, part: shown });
      await turn(shown.part === "pictures" ? STILL_MS : 0);
      if (name === "answer" && id !== newest) { isWhole = false; break; }
    }
    parts.destroy();
    postMessage({ id, done: true });
    if (name === "answer" && isWhole) { await keepSnapshot(); await unpackFiles(); }
  } catch (error) {
    postMessage({ id, done: true, failed: error.message });
  }
};
