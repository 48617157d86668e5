// Run by Node in a build: saves Python's memory with everything imported, from which every visit starts, and what a
// page without a question of its own shows at once.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, memory, given] = process.argv.slice(2), FOLDER = "/lib/ds_advise_package";
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const python = await loadPyodide({ indexURL: folder, _makeSnapshot: true });
python.unpackArchive(new Uint8Array(readFileSync(`${folder}/ds_advise.bin`)), "gztar", { extractDir: FOLDER });
const shown = python.runPython(`
import gc, json, sys
sys.path.insert(0, "${FOLDER}")
from ds_advise.advisor.page.answers import FIRST, REQUESTS
parts = REQUESTS["answer"](json.dumps({"state": FIRST}))
shown = f'{{"choices": {next(REQUESTS["choices"]("{}"))}, "answer": {next(parts)}, "charts": {next(parts)}}}'
del parts, FIRST, REQUESTS
gc.collect()
gc.disable()  # answers make no reference cycles; a search for them takes a tenth of an answer's time
shown
`);
python.globals.delete("shown");
writeFileSync(given, shown);
writeFileSync(memory, python.makeMemorySnapshot());
