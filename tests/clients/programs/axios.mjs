// axios, which reads the proxy from the environment by itself.

import axios from "axios";
import { Readable } from "node:stream";

import { ORIGIN, PAYLOAD, SERIES, pieces, report } from "./steps.mjs";

const client = axios.create({ timeout: 20000, responseType: "arraybuffer", validateStatus: () => true });

async function step(name, path, options = {}) {
  const answer = await client.request({ url: ORIGIN + path, ...options });
  report(name, answer.status, answer.data);
}

await step("get", "/get");
await step("post", "/echo", { method: "POST", data: PAYLOAD });
await step("chunked", "/echo", { method: "POST", data: Readable.from(pieces()), maxRedirects: 0 });
await step("head", "/head", { method: "HEAD" });
await step("redirect", "/redirect");
await step("gzip", "/gzip");
await step("missing", "/missing");
await step("stream", "/stream");
for (let number = 0; number < SERIES; number++) await step("series", `/series/${number}`);
