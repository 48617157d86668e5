// Run by Node in a build: saves Python's memory with everything imported, from which every visit starts.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, written] = process.argv.slice(2), FOLDER = "/lib/ds_advise_package";
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const python = await loadPyodide({ indexURL: folder, _makeSnapshot: true });
python.unpackArchive(new Uint8Array(readFileSync(`${folder}/ds_advise.zip`)), "zip", { extractDir: FOLDER });
python.runPython(`
import gc, json, sys
sys.path.insert(0, "${FOLDER}")
from ds_advise.advisor.page.answers import FIRST, REQUESTS
next(REQUESTS["choices"](""))
next(REQUESTS["answer"](json.dumps({"state": FIRST, "picture": "memory", "width": 700})))
del FIRST, REQUESTS
gc.collect()
gc.disable()  # answers make no reference cycles; a search for them takes a tenth of an answer's time
`);
writeFileSync(written, python.makeMemorySnapshot());
