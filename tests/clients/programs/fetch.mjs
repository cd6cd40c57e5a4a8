// The fetch that Node comes with.

import { ORIGIN, PAYLOAD, SERIES, pieces, report } from "./steps.mjs";

async function step(name, path, options = {}) {
  const answer = await fetch(ORIGIN + path, { signal: AbortSignal.timeout(20000), ...options });
  report(name, answer.status, await answer.arrayBuffer());
}

await step("get", "/get");
await step("post", "/echo", { method: "POST", body: PAYLOAD });
await step("chunked", "/echo", { method: "POST", body: ReadableStream.from(pieces()), duplex: "half" });
await step("head", "/head", { method: "HEAD" });
await step("redirect", "/redirect");
await step("gzip", "/gzip");
await step("missing", "/missing");
await step("stream", "/stream");
for (let number = 0; number < SERIES; number++) await step("series", `/series/${number}`);
