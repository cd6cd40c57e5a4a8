// Pushes room availability to an OTA, property by property, and prints what it got as one JSON line.
//
//     OTA_URL=https://supply-xml.booking.com OTA_USER=machine-account OTA_PASSWORD=... node sync_rates.mjs 25

const { OTA_URL, OTA_USER, OTA_PASSWORD } = process.env;
const count = Number(process.argv[2] ?? 25);
const url = new URL(process.argv[3] ?? "/hotels/xml/availability", OTA_URL);
const headers = {
  authorization: "Basic " + Buffer.from(`${OTA_USER}:${OTA_PASSWORD}`).toString("base64"),
  "content-type": "application/xml",
};

const statuses = {};
let errors = 0;
let firstError = null;
const started = performance.now();
for (let number = 0; number < count; number++) {
  const body = `<request><hotel_id>${1000 + number}</hotel_id></request>`;
  try {
    const response = await fetch(url, { method: "POST", headers, body });
    await response.arrayBuffer();
    statuses[response.status] = (statuses[response.status] ?? 0) + 1;
  } catch (error) {
    errors += 1;
    firstError ??= String(error.cause ?? error);
  }
}

console.log(JSON.stringify({
  requests: count,
  statuses,
  errors,
  first_error: firstError,
  seconds: (performance.now() - started) / 1000,
}));
process.exitCode = errors === 0 && Object.keys(statuses).every((status) => status === "200") ? 0 : 1;
