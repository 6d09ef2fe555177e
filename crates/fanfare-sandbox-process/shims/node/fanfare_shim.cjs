'use strict';
// Loads a JavaScript handler and serves HTTP/1.1 on an inherited socket. PROTOCOL.md says how it is started and driven.

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { isUtf8 } = require('node:buffer');

const LISTENER_FD = 3;
const GATE_FD = 4;
const PACKET_BYTES_MAX = 128 * 1024;
const HEAD_BYTES_MAX = 64 * 1024;
const HEADERS_MAX = 256;
const BODY_BYTES_MAX_DEFAULT = 64 * 1024 * 1024;
const DETAIL_CHARS_MAX = 300;
const TRACE_CHARS_MAX = 8000;
const STACK_LINES_MAX = 100;
const STACK_LINE_CHARS_MAX = 400;
const LINGER_BYTES_MAX = 8 * 1024 * 1024;
const LINGER_MS = 1000;
const STATUS_PROTOCOL_ERROR = 70;
const TEXT = 'text/plain; charset=utf-8';
const BINARY = 'application/octet-stream';
const JSON_TYPE = 'application/json';
// What a handler may not say about its connection: the shim frames the answer.
const CONNECTION_FIELDS = new Set([
  'connection', 'content-length', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade',
]);

/** The sandbox cannot start; `kind` is one of the protocol's. */
class Failure extends Error {
  constructor(kind, detail, trace = '') {
    super(detail);
    this.kind = kind;
    this.detail = detail.slice(0, DETAIL_CHARS_MAX);
    this.trace = trace;
  }
}

/** The request is not answered by the handler. */
class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// --- the log --------------------------------------------------------------------------------------------------

/** Outputs that were used and whose last line has not ended. */
const unended = new Set();

/** Has an output, from its first use on, know where it stands: making it costs time that most starts do not need. */
function knowLineEnds(name) {
  const { get, ...rest } = Object.getOwnPropertyDescriptor(process, name);
  let stream;
  const made = () => {
    if (stream) return stream;
    stream = get.call(process);
    const { write } = stream;
    stream.write = function (chunk, ...more) {
      const last = chunk?.at?.(-1);
      if (last === '\n' || last === 10) unended.delete(stream);
      else if (last !== undefined) unended.add(stream);
      return write.call(this, chunk, ...more);
    };
    return stream;
  };
  Object.defineProperty(process, name, { ...rest, get: made });
}

/** Ends what handlers have left of a line, so that the next request's output is no part of it. */
function endLines() {
  for (const stream of unended) stream.write('\n');
}

// --- words with the runtime -----------------------------------------------------------------------------------

function protocolError(what) {
  process.stderr.write(`fanfare: ${what}\n`);
  process.exit(STATUS_PROTOCOL_ERROR);
}

/** Says hello and waits to be let through; false when the runtime has gone instead. */
function passGate() {
  const buffer = Buffer.alloc(PACKET_BYTES_MAX);
  let count;
  try {
    fs.writeSync(GATE_FD, '{"type":"hello"}');
    // Blocking: a read in libuv's pool would keep the process from ending at SIGTERM.
    count = fs.readSync(GATE_FD, buffer);
  } catch (error) {
    if (error.code !== 'ECONNRESET' && error.code !== 'EPIPE') throw error;
    count = 0;
  }
  if (count === 0) return false;
  let message;
  try {
    message = JSON.parse(buffer.toString('utf8', 0, count));
  } catch {
    message = null;
  }
  if (message?.type !== 'go') protocolError('something else where go was expected');
  const env = message.env ?? {};
  if (typeof env !== 'object' || Object.values(env).some((value) => typeof value !== 'string')) {
    protocolError('an env that is not an object of texts');
  }
  Object.assign(process.env, env);
  if (message.seccomp_filter) {
    throw new Failure('internal', 'Node.js cannot install a seccomp filter; its launcher must');
  }
  return true;
}

// --- the handler ----------------------------------------------------------------------------------------------

function numberFrom(name, fallback) {
  const text = process.env[name];
  if (!text) return fallback;
  if (!/^[0-9]{1,15}$/.test(text)) throw new Failure('internal', `${name} is ${text.slice(0, 40)}; it must be a number`);
  return Number(text);
}

function readSettings() {
  const env = process.env;
  if (!env.FANFARE_HANDLER_FILE) throw new Failure('internal', 'FANFARE_HANDLER_FILE is not set');
  return {
    file: env.FANFARE_HANDLER_FILE,
    handler: env.FANFARE_HANDLER || 'handler',
    codeDir: env.FANFARE_CODE_DIR || '.',
    bodyBytesMax: numberFrom('FANFARE_BODY_BYTES_MAX', BODY_BYTES_MAX_DEFAULT),
    memoryLimitMb: numberFrom('FANFARE_MEMORY_LIMIT_MB', 0),
    functionName: env.FANFARE_FUNCTION_NAME ?? '',
    revision: env.FANFARE_REVISION ?? '',
    sandboxId: env.FANFARE_SANDBOX_ID ?? '',
  };
}

/** The handler, imported. Throws Failure. */
async function load(settings) {
  try {
    process.chdir(settings.codeDir);
  } catch (error) {
    throw new Failure('internal', `the code's directory cannot be entered: ${error.message}`);
  }
  const file = path.resolve(settings.file);
  process.argv = [process.argv[0], file];
  if (!fs.statSync(file, { throwIfNoEntry: false })?.isFile()) {
    throw new Failure('handler-not-found', `there is no file '${settings.file}' in the function's code`);
  }
  let exported;
  try {
    exported = await importFile(file);
  } catch (error) {
    const trace = traceOf(error);
    process.stderr.write(`${trace}\n`);
    throw new Failure('import-failed', describe(error).split('\n', 1)[0], trace);
  }
  const handler = find(exported, settings.handler) ?? find(exported?.default, settings.handler);
  if (handler === undefined || handler === null) {
    throw new Failure('handler-not-found', `'${settings.file}' exports no '${settings.handler}'`);
  }
  if (typeof handler !== 'function') {
    const what = `'${settings.handler}' of '${settings.file}' is ${typeof handler}, not a function`;
    throw new Failure('handler-not-found', what);
  }
  return handler;
}

function find(exported, name) {
  return name.split('.').reduce((value, part) => value?.[part], exported);
}

/** CommonJS first, for the loader of ES modules takes ten milliseconds to begin. */
async function importFile(file) {
  if (process.env.FANFARE_DEPS_DIR) {
    process.env.NODE_PATH = [process.env.FANFARE_DEPS_DIR, process.env.NODE_PATH].filter(Boolean).join(path.delimiter);
    require('node:module').Module._initPaths();
  }
  if (!file.endsWith('.mjs')) {
    try {
      return require(file);
    } catch (error) {
      if (error?.code !== 'ERR_REQUIRE_ESM' && error?.code !== 'ERR_REQUIRE_ASYNC_MODULE') throw error;
    }
  }
  return import(require('node:url').pathToFileURL(file).href);
}

function typeOf(error) {
  return error instanceof Error ? (error.name || error.constructor?.name || 'Error') : typeof error;
}

function describe(error) {
  try {
    return `${typeOf(error)}: ${error instanceof Error ? error.message : String(error)}`;
  } catch {
    return typeOf(error);
  }
}

/** The trace without the shim's and Node's own frames. */
function traceOf(error) {
  if (typeof error?.stack !== 'string') return describe(error);
  const own = (line) => /^(\s+at |- )/.test(line) && (line.includes(__filename) || line.includes('(node:') || line.includes(' node:'));
  return error.stack.split('\n').filter((line) => !own(line)).join('\n');
}

let logger = null;

/** Standard error, where the platform's log lines come from; standard output is the handler's own. */
function theLogger() {
  logger ??= new console.Console(process.stderr);
  return logger;
}

/** `arrived` is when the head was read, on the clock of `performance.now()`. */
function makeContext(settings, request, body, arrived) {
  const rawHeaders = [];
  const headers = Object.create(null);
  for (let i = 0; i < request.rawHeaders.length; i += 2) {
    const name = request.rawHeaders[i].toLowerCase();
    const value = request.rawHeaders[i + 1];
    rawHeaders.push([name, value]);
    headers[name] = name in headers ? headers[name] + (name === 'cookie' ? '; ' : ', ') + value : value;
  }
  let target = request.url;
  const absolute = /^[^/?]*:\/\/[^/?]*/.exec(target);
  if (absolute) target = target.slice(absolute[0].length).replace(/^(?!\/)/, '/');
  const mark = target.indexOf('?');
  const deadlineMs = /^[0-9]{1,12}$/.test(headers['x-fanfare-deadline-ms'] ?? '')
    ? Number(headers['x-fanfare-deadline-ms'])
    : null;
  const remainingMs = () => deadlineMs - (performance.now() - arrived);
  return {
    requestId: headers['x-request-id'] ?? '',
    functionName: settings.functionName,
    revision: settings.revision,
    sandboxId: settings.sandboxId,
    memoryLimitInMb: settings.memoryLimitMb,
    deadlineMs: deadlineMs === null ? null : Math.floor(Date.now() + remainingMs()),
    getRemainingTimeInMillis() {
      return deadlineMs === null ? null : Math.max(0, Math.floor(remainingMs()));
    },
    get logger() {
      return theLogger();
    },
    http: {
      method: request.method,
      path: mark < 0 ? target : target.slice(0, mark),
      query: mark < 0 ? '' : target.slice(mark + 1),
      headers,
      rawHeaders,
      body,
      isBase64: false,
    },
  };
}

function makeEvent(info) {
  if (info.body.length === 0) return {};
  if (!isUtf8(info.body)) {
    info.isBase64 = true;
    return info.body.toString('base64');
  }
  const text = info.body.toString('utf8');
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// --- answers --------------------------------------------------------------------------------------------------

function isStream(value) {
  return typeof value === 'object' && value !== null
    && (typeof value[Symbol.asyncIterator] === 'function'
      || (typeof value.next === 'function' && typeof value[Symbol.iterator] === 'function'));
}

function isBytes(value) {
  return ArrayBuffer.isView(value) || value instanceof ArrayBuffer;
}

function toBytes(value) {
  if (typeof value === 'string') return Buffer.from(value, 'utf8');
  if (value instanceof ArrayBuffer) return Buffer.from(value);
  if (ArrayBuffer.isView(value)) return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  throw new TypeError(`a stream yielded ${typeof value}; it must yield text or bytes`);
}

function jsonBytes(value) {
  const text = JSON.stringify(value);
  if (text === undefined) throw new TypeError(`the handler's answer is not JSON: ${typeof value}`);
  return Buffer.from(text, 'utf8');
}

/** What a handler returned, as status, header fields (pairs, framing excluded) and a body (bytes or a stream). */
function makeAnswer(value) {
  const plain = (type, body) => ({ status: 200, fields: type ? [['content-type', type]] : [], body });
  if (value === undefined || value === null) return plain(JSON_TYPE, Buffer.from('null'));
  if (typeof value === 'string') return plain(TEXT, toBytes(value));
  if (isBytes(value)) return plain(BINARY, toBytes(value));
  if (isStream(value)) return plain('', value);
  if (typeof value === 'object' && !Array.isArray(value) && 'statusCode' in value) return fullAnswer(value);
  return plain(JSON_TYPE, jsonBytes(value));
}

function fullAnswer(value) {
  const status = /^[0-9]{3}$/.test(String(value.statusCode)) ? Number(value.statusCode) : NaN;
  if (!(status >= 200 && status <= 599)) {
    throw new RangeError(`statusCode is ${String(value.statusCode).slice(0, 40)}; it must be a number from 200 to 599`);
  }
  let { body } = value;
  let type = JSON_TYPE;
  if (typeof body === 'string' && value.isBase64Encoded) {
    body = Buffer.from(body, 'base64');
    type = BINARY;
  } else if (typeof body === 'string') {
    body = toBytes(body);
  } else if (body === undefined || body === null) {
    body = Buffer.alloc(0);
    type = '';
  } else if (isBytes(body)) {
    body = toBytes(body);
    type = BINARY;
  } else if (isStream(body)) {
    type = '';
  } else {
    body = jsonBytes(body);
  }
  const fields = [];
  const add = (name, field) => {
    if (!['string', 'number', 'boolean'].includes(typeof field)) {
      throw new TypeError(`header ${name} is ${typeof field}, not text`);
    }
    const bytes = Buffer.from(String(field), 'utf8').toString('latin1').replace(/^[ \t]+|[ \t]+$/g, '');
    http.validateHeaderName(name);
    http.validateHeaderValue(name, bytes);
    if (!CONNECTION_FIELDS.has(name.toLowerCase())) fields.push([name, bytes]);
  };
  for (const [name, field] of Object.entries(value.headers ?? {})) {
    for (const one of Array.isArray(field) ? field : [field]) add(name, one);
  }
  for (const [name, field] of Object.entries(value.multiValueHeaders ?? {})) {
    if (!Array.isArray(field)) throw new TypeError(`multiValueHeaders['${name}'] is not a list`);
    for (const one of field) add(name, one);
  }
  for (const one of value.cookies ?? []) add('set-cookie', one);
  if (type && !hasContentType(fields)) fields.push(['content-type', type]);
  return { status, fields, body };
}

function hasContentType(fields) {
  return fields.some(([name]) => name.toLowerCase() === 'content-type');
}

/** A problem document (RFC 9457) in the platform's own words. */
function problem(status, reason, title, detail, requestId, more = {}) {
  const body = { type: `urn:fanfare:reason:${reason}`, title, status, detail, reason, ...more, request_id: requestId };
  const fields = [['content-type', 'application/problem+json'], ['x-fanfare-reason', reason]];
  return { status, fields, body: jsonBytes(body) };
}

/** Which limit an error of the handler tells of, if one. */
function reasonOf(error) {
  const code = error?.code;
  if (code === 'ENOSPC' || code === 'EDQUOT') {
    return ['no-space', 'write less, or give its /tmp more with `fanfare update NAME --tmp SIZE`'];
  }
  const starts = String(error?.syscall ?? '').startsWith('spawn') || code === 'ERR_WORKER_INIT_FAILED';
  if (starts && (code === 'EAGAIN' || String(error?.message).includes('EAGAIN'))) {
    const hint = 'start fewer processes and threads, or allow more with `fanfare update NAME --pids N`';
    return ['process-limit', hint];
  }
  return ['handler-error', 'see the message; `fanfare logs NAME` has the rest'];
}

function handlerError(error, requestId) {
  const trace = traceOf(error);
  process.stderr.write(`${trace}\n`);
  const stack = trace.split('\n').slice(0, STACK_LINES_MAX).map((line) => line.slice(0, STACK_LINE_CHARS_MAX));
  const name = process.env.FANFARE_FUNCTION_NAME || 'NAME';
  const [reason, general] = reasonOf(error);
  const hint = general.replace('NAME', name);
  const more = { hint, error_type: typeOf(error), stack };
  return problem(502, reason, 'The handler raised an error', describe(error).slice(0, 1000), requestId, more);
}

/** A body that is made while it is sent. */
class Pieces {
  constructor(source) {
    this.iterator = (source[Symbol.asyncIterator] ?? source[Symbol.iterator]).call(source);
    this.isText = false;
  }

  /** The next piece that is not empty; null at the end. */
  async next() {
    for (;;) {
      const { done, value } = await this.iterator.next();
      if (done) return null;
      this.isText = typeof value === 'string';
      const piece = toBytes(value);
      if (piece.length > 0) return piece;
    }
  }

  async close() {
    try {
      await this.iterator.return?.();
    } catch (error) {
      process.stderr.write(`${traceOf(error)}\n`);
    }
  }
}

// --- requests -------------------------------------------------------------------------------------------------

class Server {
  constructor(settings, handler) {
    this.settings = settings;
    this.handler = handler;
    this.stopping = false;
    this.inFlight = 0;
    // Sockets with a whole request in hand: what is said on them is its answer and nothing else.
    this.busy = new WeakSet();
    this.http = http.createServer({
      maxHeaderSize: HEAD_BYTES_MAX,
      // The data plane decides when a connection is over, and for how long a request may run.
      keepAliveTimeout: 0,
      requestTimeout: 0,
      requireHostHeader: false,
    });
    this.http.on('request', (request, response) => this.onRequest(request, response));
    this.http.on('checkContinue', (request, response) => {
      if (Number(request.headers['content-length'] ?? 0) <= settings.bodyBytesMax) response.writeContinue();
      this.onRequest(request, response);
    });
    this.http.on('connect', (request, socket) => refuseSocket(socket, 501, 'CONNECT is not served'));
    this.http.on('clientError', (error, socket) => {
      if (error.code === 'ECONNRESET' || !socket.writable || this.busy.has(socket)) {
        socket.destroy();
      } else if (error.code === 'HPE_HEADER_OVERFLOW') {
        refuseSocket(socket, 431, `the head has more than ${HEAD_BYTES_MAX} bytes`);
      } else {
        refuseSocket(socket, 400, `the request is malformed: ${error.reason ?? error.message}`);
      }
    });
  }

  async onRequest(request, response) {
    const { socket } = request;
    const arrived = performance.now();
    this.inFlight += 1;
    response.sendDate = false;
    // An error of the socket is followed by close, which is where it is dealt with.
    response.on('error', () => {});
    request.on('error', () => {});
    response.on('close', () => this.over(socket));
    let body;
    try {
      this.check(request);
      body = await this.readBody(request);
    } catch (error) {
      this.busy.add(socket);
      if (error instanceof Refused) this.refuse(request, response, error);
      else response.destroy();
      return;
    }
    this.busy.add(socket);
    const answer = await this.call(request, body, arrived);
    if (!answer.pieces) this.endLinesIfAlone();
    try {
      await this.send(response, answer, request.method === 'HEAD');
    } catch (error) {
      process.stderr.write(`${traceOf(error)}\n`);
      // Cut, but after what has been written: that is still on its way in this turn of the loop.
      setImmediate(() => response.socket?.destroySoon());
    }
  }

  check(request) {
    if (request.httpVersion !== '1.1' && request.httpVersion !== '1.0') {
      throw new Refused(505, 'the version must be HTTP/1.1 or HTTP/1.0');
    }
    if (request.rawHeaders.length > 2 * HEADERS_MAX) throw new Refused(431, `more than ${HEADERS_MAX} header fields`);
    const coding = request.headers['transfer-encoding'];
    if (coding !== undefined && request.httpVersion === '1.0') {
      throw new Refused(400, 'Transfer-Encoding with HTTP/1.0 is ambiguous');
    }
    if (coding !== undefined && coding.toLowerCase() !== 'chunked') {
      throw new Refused(501, 'the only transfer coding is chunked, once');
    }
    const limit = this.settings.bodyBytesMax;
    const length = Number(request.headers['content-length'] ?? 0);
    if (length > limit) throw new Refused(413, `the body has ${length} bytes; the limit is ${limit}`);
  }

  readBody(request) {
    return new Promise((resolve, reject) => {
      const limit = this.settings.bodyBytesMax;
      const parts = [];
      let total = 0;
      const onData = (part) => {
        total += part.length;
        if (total > limit) {
          request.off('data', onData);
          reject(new Refused(413, `the body has more than the limit of ${limit} bytes`));
        } else {
          parts.push(part);
        }
      };
      request.on('data', onData);
      request.on('end', () => resolve(Buffer.concat(parts)));
      request.on('close', () => reject(new Error('the peer left in the middle of a body')));
    });
  }

  refuse(request, response, { status, message }) {
    const reason = status === 413 || status === 431 ? 'too-large' : 'bad-request';
    const id = request.headers['x-request-id'] ?? '';
    const answer = problem(status, reason, 'The request was refused', message, id);
    response.shouldKeepAlive = false;
    response.writeHead(status, [...answer.fields, ['content-length', answer.body.length]].flat());
    if (request.method === 'HEAD') response.flushHeaders();
    else response.write(answer.body);
    // It is all said, but the connection is closed only later, so that a peer that is still writing reads it.
    const end = () => response.end();
    let left = LINGER_BYTES_MAX;
    request.on('data', (part) => {
      left -= part.length;
      if (left <= 0) end();
    });
    request.on('end', end);
    setTimeout(end, LINGER_MS).unref();
    request.resume();
  }

  async call(request, body, arrived) {
    const context = makeContext(this.settings, request, body, arrived);
    try {
      const answer = makeAnswer(await this.handler(makeEvent(context.http), context));
      if (isStream(answer.body)) {
        // To its first piece, so that an error before it still has an answer of its own.
        answer.pieces = new Pieces(answer.body);
        answer.first = await answer.pieces.next();
        if (!hasContentType(answer.fields)) {
          answer.fields.push(['content-type', answer.pieces.isText ? TEXT : BINARY]);
        }
      }
      return answer;
    } catch (error) {
      return handlerError(error, context.requestId);
    }
  }

  async send(response, answer, head) {
    const bodiless = answer.status === 204 || answer.status === 304;
    if (this.stopping) response.shouldKeepAlive = false;
    if (answer.pieces) {
      response.writeHead(answer.status, answer.fields.flat());
      await this.sendPieces(response, answer, head || bodiless);
      return;
    }
    const length = bodiless ? [] : [['content-length', answer.body.length]];
    response.writeHead(answer.status, [...answer.fields, ...length].flat());
    response.end(head || bodiless ? undefined : answer.body);
  }

  async sendPieces(response, { pieces, first }, silent) {
    try {
      for (let piece = first; piece !== null && !silent && !response.closed; piece = await pieces.next()) {
        if (!response.write(piece)) await drained(response);
      }
      response.end();
    } finally {
      await pieces.close();
      this.endLinesIfAlone();
    }
  }

  /** Another request that runs may yet go on with its line. */
  endLinesIfAlone() {
    if (this.inFlight <= 1) endLines();
  }

  over(socket) {
    this.inFlight -= 1;
    this.busy.delete(socket);
    if (this.stopping) this.finish();
  }

  stop() {
    this.stopping = true;
    this.http.close();
    this.finish();
  }

  finish() {
    // Not in this turn of the loop: the handler's own SIGTERM listeners come after ours.
    if (this.inFlight === 0) setImmediate(() => process.exit(0));
    this.http.closeIdleConnections();
  }
}

function drained(response) {
  return new Promise((resolve) => {
    const done = () => {
      response.off('drain', done);
      response.off('close', done);
      resolve();
    };
    response.on('drain', done);
    response.on('close', done);
  });
}

/** Refuses what never became a request. */
function refuseSocket(socket, status, detail) {
  const answer = problem(status, status === 431 ? 'too-large' : 'bad-request', 'The request was refused', detail, '');
  const fields = [...answer.fields, ['content-length', answer.body.length], ['connection', 'close']];
  const head = `HTTP/1.1 ${status} ${http.STATUS_CODES[status]}\r\n${fields.map(([n, v]) => `${n}: ${v}\r\n`).join('')}\r\n`;
  socket.end(Buffer.concat([Buffer.from(head, 'latin1'), answer.body]));
  setTimeout(() => socket.destroy(), LINGER_MS).unref();
}

// --- the whole ------------------------------------------------------------------------------------------------

async function main() {
  if (process.argv[2] !== 'serve' || process.argv.length !== 3) {
    process.stderr.write('usage: fanfare_shim.cjs serve\n');
    process.exit(2);
  }
  let server = null;
  knowLineEnds('stdout');
  knowLineEnds('stderr');
  try {
    if (!passGate()) process.exit(0);
    process.on('SIGTERM', () => (server ? server.stop() : process.exit(0)));
    const settings = readSettings();
    const handler = await load(settings);
    server = new Server(settings, handler);
  } catch (error) {
    const failure = error instanceof Failure ? error : new Failure('internal', describe(error), traceOf(error));
    const { kind, detail } = failure;
    fs.writeSync(GATE_FD, JSON.stringify({ type: 'failed', kind, detail, trace: failure.trace.slice(-TRACE_CHARS_MAX) }));
    process.exit(1);
  }
  // Listening begins in this turn of the loop, and the first accept is in the next one.
  server.http.listen({ fd: LISTENER_FD }, () => {
    fs.writeSync(GATE_FD, '{"type":"ready"}');
    fs.closeSync(GATE_FD);
  });
}

main();
