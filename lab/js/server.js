// SPDX-License-Identifier: Apache-2.0 OR MIT
// A page of fixed cost, served by Node's own modules. Options: JSON in the first argument.
'use strict';

const fs = require('node:fs');

const options = JSON.parse(process.argv[2]);

// CPU time of the process, which is that of its one busy thread: work by the clock, so that a
// slower or shared processor makes it last longer.
function burn(us) {
  const since = process.cpuUsage();
  for (;;) {
    const used = process.cpuUsage(since);
    if (used.user + used.system >= us) return;
  }
}

function page(response) {
  response.writeHead(200, { 'content-type': 'text/plain', 'content-length': 3 });
  response.end('ok\n');
}

function serve(request, response) {
  if (request.url === '/poll') {
    setTimeout(() => page(response), options.poll_ms);
  } else if (options.kind === 'wait') {
    setTimeout(() => page(response), options.cost_us / 1000);
  } else {
    burn(options.cost_us);
    page(response);
  }
}

function create() {
  if (!options.certificate) return require('node:http').createServer(serve);
  const tls = {
    cert: fs.readFileSync(options.certificate),
    key: fs.readFileSync(options.key),
    minVersion: 'TLSv1.3',
  };
  if (options.http2) return require('node:http2').createSecureServer(tls, serve);
  return require('node:https').createServer(tls, serve);
}

create().listen(options.port, '::');
