'use strict';
// What the tests call.

const fs = require('node:fs');

process.on('exit', () => console.log('atexit hook'));
process.on('SIGTERM', () => console.log('sigterm hook'));

function describe(event, context) {
  const { http } = context;
  return {
    event,
    request_id: context.requestId,
    function_name: context.functionName,
    revision: context.revision,
    sandbox_id: context.sandboxId,
    memory: context.memoryLimitInMb,
    remaining: context.getRemainingTimeInMillis(),
    has_deadline: context.deadlineMs !== null,
    method: http.method,
    path: http.path,
    query: http.query,
    headers: http.headers,
    raw_headers: http.rawHeaders,
    body_bytes: http.body.length,
    is_base64: http.isBase64,
    pid: process.pid,
  };
}

const actions = {
  return: (event) => event.value,
  bytes: (event) => Buffer.from(event.value),
  stream: (event) => event.value.values(),
  stream_bytes: (event) => event.value.map((piece) => Uint8Array.from(piece)).values(),
  stream_with_status: () => (
    { statusCode: 201, headers: { 'content-type': 'text/event-stream' }, body: ['data: 1\n\n'].values() }
  ),
  * stream_error(event) {
    for (let n = 0; n < event.after; n += 1) yield `piece ${n}`;
    throw new RangeError('in the stream');
  },
  async* stream_slowly() {
    try {
      for (let n = 0; n < 1000000; n += 1) yield `${n}\n`;
    } finally {
      console.log('stream closed');
    }
  },
  full: (event) => event.answer,
  raise: () => { throw new RangeError('the value is wrong'); },
  fill: () => { throw Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' }); },
  not_ready: () => { throw Object.assign(new Error('read EAGAIN'), { code: 'EAGAIN', syscall: 'read' }); },
  spawn: () => { throw Object.assign(new Error('spawn true EAGAIN'), { code: 'EAGAIN', syscall: 'spawn true' }); },
  not_json: () => ({ value: 1n }),
  exit: (event) => process.exit(event.status),
  exit_now: (event) => process.exit(event.status),
  print(event, context) {
    console.log('to stdout');
    console.error('to stderr');
    context.logger.info('INFO to the log');
    process.stdout.write('no newline');
    return 'printed';
  },
  write(event) {
    process.stdout.write(event.text);
    process.stderr.write(Buffer.from(event.text));
    return 'written';
  },
  * write_in_stream() {
    process.stdout.write('stream 1');
    yield 'pie';
    process.stdout.write(', 2');
    yield 'ces';
  },
  async wait(event) {
    console.log('waiting');
    while (!fs.existsSync(event.file)) await new Promise((resolve) => { setTimeout(resolve, 2); });
    return 'waited';
  },
  pid: () => process.pid,
  reject() {
    Promise.reject(new RangeError('nobody listens'));
    return new Promise(() => {});
  },
};

exports.handler = (event, context) => {
  if (typeof event !== 'object' || event === null || !('do' in event)) return describe(event, context);
  return actions[event.do](event, context);
};

exports.not_callable = 42;

exports.async_handler = async (event) => {
  await null;
  if (event.do === 'raise') throw new RangeError('the value is wrong');
  return { async: true };
};

exports.async_stream = async function* stream() {
  for (let n = 0; n < 3; n += 1) {
    await null;
    yield `piece ${n}`;
  }
};
