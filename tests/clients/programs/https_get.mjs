// node:https, which follows no redirects and decodes nothing.

import https from "node:https";
import { Readable } from "node:stream";

import { ORIGIN, PAYLOAD, SERIES, pieces, report } from "./steps.mjs";

function step(name, path, { body, ...options } = {}) {
  return new Promise((resolve, reject) => {
    const request = https.request(ORIGIN + path, { timeout: 20000, ...options }, async (answer) => {
      const chunks = [];
      for await (const chunk of answer) chunks.push(chunk);
      report(name, answer.statusCode, Buffer.concat(chunks));
      resolve();
    });
    request.on("timeout", () => request.destroy(new Error(`no answer to ${name}`)));
    request.on("error", reject);
    if (body instanceof Readable) body.pipe(request);
    else request.end(body);
  });
}

await step("get", "/get");
await step("post", "/echo", { method: "POST", body: PAYLOAD, headers: { "Content-Length": PAYLOAD.length } });
await step("chunked", "/echo", { method: "POST", body: Readable.from(pieces()) });
await step("head", "/head", { method: "HEAD" });
await step("redirect", "/redirect");
await step("gzip", "/gzip", { headers: { "Accept-Encoding": "gzip" } });
await step("missing", "/missing");
await step("stream", "/stream");
for (let number = 0; number < SERIES; number++) await step("series", `/series/${number}`);
