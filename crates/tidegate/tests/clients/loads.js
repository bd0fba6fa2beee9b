// SPDX-License-Identifier: Apache-2.0 OR MIT
// Asks for a URL many times with Node's http and a keep-alive agent; prints what came of it.
const http = require("http");
const [url, times] = [process.argv[2], Number(process.argv[3])];
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
const found = {};
const count = (word) => { found[word] = (found[word] || 0) + 1; };

function one() {
  return new Promise((done) => {
    const request = http.get(url, { agent, timeout: 30000 }, (answer) => {
      let bytes = 0;
      answer.on("data", (data) => { bytes += data.length; });
      answer.on("end", () => {
        const clean = answer.statusCode !== 503 || Number(answer.headers["retry-after"]) >= 1;
        count(clean && answer.complete && bytes > 0 ? String(answer.statusCode) : "unclean");
        done();
      });
      answer.on("error", () => { count("cut"); done(); });
    });
    request.on("timeout", () => request.destroy(new Error("timeout")));
    request.on("error", (error) => {
      count(error.code === "ECONNRESET" ? "reset" : error.code || error.message);
      done();
    });
  });
}

async function worker(left) {
  while (left.count-- > 0) await one();
}

const left = { count: times };
Promise.all([0, 1, 2, 3].map(() => worker(left))).then(() => {
  for (const [word, number] of Object.entries(found)) console.log(word, number);
  agent.destroy();
});
