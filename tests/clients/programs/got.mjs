// got with proxy-agent, which reads the environment for it.

import got from "got";
import { ProxyAgent } from "proxy-agent";
import { Readable } from "node:stream";

import { ORIGIN, PAYLOAD, SERIES, pieces, report } from "./steps.mjs";

const agent = new ProxyAgent({ keepAlive: true });
const client = got.extend({
  agent: { http: agent, https: agent },
  retry: { limit: 0 },
  responseType: "buffer",
  throwHttpErrors: false,
  timeout: { request: 20000 },
});

async function step(name, path, options = {}) {
  const answer = await client(ORIGIN + path, options);
  report(name, answer.statusCode, answer.body);
}

await step("get", "/get");
await step("post", "/echo", { method: "POST", body: PAYLOAD });
await step("chunked", "/echo", { method: "POST", body: Readable.from(pieces()) });
await step("head", "/head", { method: "HEAD" });
await step("redirect", "/redirect");
await step("gzip", "/gzip");
await step("missing", "/missing");
await step("stream", "/stream");
for (let number = 0; number < SERIES; number++) await step("series", `/series/${number}`);
agent.destroy();
