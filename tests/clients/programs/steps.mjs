// What the Node programs share: the payload, and the line that each step prints.

import { createHash } from "node:crypto";

export const ORIGIN = process.env.ORIGIN;
export const PAYLOAD = Buffer.from("0123456789abcdef".repeat(6400));
export const SERIES = 5;

/** The payload in parts, so that no client can know its length. */
export async function* pieces() {
  for (let start = 0; start < PAYLOAD.length; start += 10240) {
    yield PAYLOAD.subarray(start, start + 10240);
  }
}

export function report(step, status, body) {
  const bytes = Buffer.from(body);
  console.log(step, status, bytes.length, createHash("sha256").update(bytes).digest("hex"));
}
