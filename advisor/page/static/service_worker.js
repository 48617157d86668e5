// Keeps the page's files, so that it opens without a network. Every build has a cache of its own.
const CACHE = "ds-advise-{{build}}", FILES = {{files}};

self.addEventListener("install", (event) => event.waitUntil((async () => {
  const cache = await caches.open(CACHE);
  await cache.addAll(["./", ...FILES].map((name) => new Request(name, { cache: "no-cache" })));
  await self.skipWaiting();
})()));

self.addEventListener("activate", (event) => event.waitUntil((async () => {
  for (const name of await caches.keys())
    if (name.startsWith("ds-advise-") && name !== CACHE) await caches.delete(name);
  await self.clients.claim();
})()));

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url), folder = new URL("./", location).href;
  if (event.request.method !== "GET" || !url.href.startsWith(folder)) return;
  const name = url.href.slice(folder.length).split(/[?#]/)[0];
  if (name !== "" && !FILES.includes(name)) return;
  event.respondWith((async () => {
    const cache = await caches.open(CACHE), key = new URL(name === "index.html" ? "" : name, folder).href;
    return await cache.match(key) ?? fetch(event.request);
  })());
});
