// Sends `fetch`, node:http and node:https through the proxy that the environment names, for a Node that does not do so
// itself: before 22.21, and 23.0 to 24.4. Loaded with `NODE_OPTIONS=--require`, printed by `ota-pacer env --node-preload`.
//
// Everything goes through tunnels. What a program arranges itself stays as it is: agents that make their own connections,
// a dispatcher of its own. Where something is not as expected nothing is changed.
"use strict";

const http = require("node:http");
const https = require("node:https");
const net = require("node:net");
const tls = require("node:tls");

try {
  const [major, minor] = process.versions.node.split(".").map(Number);
  const isAble = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
  const proxies = { "http:": proxyOf("http_proxy"), "https:": proxyOf("https_proxy") };
  if (!isAble && (proxies["http:"] || proxies["https:"])) install(proxies);
} catch {
  // Never in the way of the program.
}

function proxyOf(name) {
  const text = process.env[name] || process.env[name.toUpperCase()];
  if (!text || !URL.canParse(text)) return undefined;
  const url = new URL(text);
  return url.protocol === "http:" ? { host: unbracketed(url.hostname), port: Number(url.port) || 80 } : undefined;
}

function install(proxies) {
  const exceptions = (process.env.no_proxy || process.env.NO_PROXY || "").split(/[\s,]+/).filter(Boolean);

  /** The proxy for a destination, if it has one. */
  function proxyFor(protocol, host, port) {
    const proxy = proxies[protocol];
    // A program that speaks to the proxy by itself knows what it does.
    const isProxy = Object.values(proxies).some((known) => known && known.host === host && known.port === port);
    return !proxy || isProxy || exceptions.some((entry) => isException(entry, host, port)) ? undefined : proxy;
  }

  for (const [module, protocol] of [[http, "http:"], [https, "https:"]]) {
    const prototype = module.Agent.prototype;
    const direct = prototype.createConnection;
    prototype.createConnection = function createConnection(options, callback) {
      // http.Agent gives its function away as net.createConnection: only a call that reads as an agent's is changed.
      const isRequest = typeof options === "object" && options !== null && typeof callback === "function";
      const host = isRequest && !options.socketPath && !options.socket && unbracketed(options.host || "localhost");
      const port = host && Number(options.port || this.defaultPort);
      const proxy = host && proxyFor(protocol, host, port);
      if (!proxy) return direct.apply(this, arguments);
      tunnel(proxy, host, port, (error, socket) => {
        if (error) return callback(error);
        if (protocol === "http:") return callback(null, socket);
        try {
          callback(null, direct.call(this, { servername: net.isIP(host) ? "" : host, ...options, socket }));
        } catch (thrown) {
          socket.destroy();
          callback(thrown);
        }
      });
      return undefined;
    };
  }

  const original = globalThis.fetch;
  const dispatcher = Symbol.for("undici.globalDispatcher.1");
  if (typeof original !== "function") return;
  let isPrepared = false;
  const prepare = () => {
    isPrepared = true;
    // Somebody else's, such as that of the undici package, stays.
    if (globalThis[dispatcher] !== undefined) return;
    // Loads Node's own undici, as the first fetch would.
    void globalThis.Response;
    const Agent = globalThis[dispatcher]?.constructor;
    if (Agent?.name === "Agent") globalThis[dispatcher] = new Agent({ connect });
  };
  const wrapped = {
    fetch(input, init = undefined) {
      try {
        if (!isPrepared) prepare();
      } catch {
        // Then fetch is as it was.
      }
      return original.call(globalThis, input, init);
    },
  };
  Object.defineProperty(globalThis, "fetch", {
    ...Object.getOwnPropertyDescriptor(globalThis, "fetch"),
    value: wrapped.fetch,
  });

  /** What undici asks of a connector. */
  function connect(options, callback) {
    const { protocol } = options;
    const host = unbracketed(options.hostname);
    const port = Number(options.port) || (protocol === "https:" ? 443 : 80);
    const secure = (socket) => {
      if (protocol !== "https:") return callback(null, socket);
      const servername = options.servername || (net.isIP(host) ? "" : host);
      const stream = tls.connect({ host, servername, ALPNProtocols: ["http/1.1"], socket });
      return once(stream, "secureConnect", (error) => callback(error, error ? null : stream));
    };
    const proxy = proxyFor(protocol, host, port);
    if (proxy) return tunnel(proxy, host, port, (error, socket) => (error ? callback(error, null) : secure(socket)));
    const socket = net.connect({ host, port, noDelay: true });
    return once(socket, "connect", (error) => (error ? callback(error, null) : secure(socket)));
  }
}

/** Asks the proxy for a tunnel. */
function tunnel(proxy, host, port, callback) {
  const socket = net.connect({ ...proxy, noDelay: true });
  const authority = `${net.isIPv6(host) ? `[${host}]` : host}:${port}`;
  let head = "";
  const done = (error) => {
    socket.removeListener("data", read);
    socket.removeListener("error", done);
    socket.removeListener("end", ended);
    socket.removeListener("timeout", late);
    socket.setTimeout(0);
    if (error) socket.destroy();
    callback(error ?? null, error ? undefined : socket);
  };
  const ended = () => done(new Error(`the proxy closed the connection when asked for ${authority}`));
  const late = () => done(new Error(`the proxy did not answer when asked for ${authority}`));
  const read = (bytes) => {
    head += bytes.toString("latin1");
    if (!head.includes("\r\n\r\n")) return head.length > 16384 && ended();
    const status = head.slice(0, head.indexOf("\r\n"));
    if (!/^HTTP\/1\.[01] 200\b/.test(status)) return done(new Error(`the proxy refused ${authority}: ${status}`));
    // Nothing follows: in HTTP and TLS the client speaks first.
    return done();
  };
  socket.on("data", read).on("error", done).on("end", ended).on("timeout", late);
  socket.setTimeout(60000);
  socket.write(`CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n\r\n`);
}

function once(socket, event, callback) {
  const finish = (error) => {
    socket.removeListener(event, succeed);
    socket.removeListener("error", finish);
    callback(error ?? null);
  };
  const succeed = () => finish();
  socket.once(event, succeed).once("error", finish);
}

/** As curl reads NO_PROXY: a name means itself and what is below it. */
function isException(entry, host, port) {
  if (entry === "*") return true;
  const [, name, only] = /^(.*?)(?::(\d+))?$/.exec(net.isIPv6(entry) ? `[${entry}]` : entry);
  if (only && Number(only) !== port) return false;
  const domain = unbracketed(name).toLowerCase().replace(/^\*?\./, "");
  const lower = host.toLowerCase().replace(/\.$/, "");
  return domain !== "" && (lower === domain || lower.endsWith(`.${domain}`));
}

function unbracketed(host) {
  return host.replace(/^\[|\]$/g, "");
}
