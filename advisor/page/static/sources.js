// The source of answers: a worker that runs Python, or the local server of `ds-advise page`.
"use strict";

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
