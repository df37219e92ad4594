// What the drivers share: each is a program that plays one scenario with one client and prints what it saw as JSON.
// The packages are found through NODE_PATH. tests/clients/test_clients.py says what every scenario must show.

const fs = require('node:fs');

const LIMIT_MS = 30_000;

/** Resolves when `done()` is true; looks again every 20 ms, for 30 s. */
async function until(done) {
  const limit = Date.now() + LIMIT_MS;
  while (!(await done())) {
    if (Date.now() > limit) throw new Error(`still waiting after ${LIMIT_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const text = (data) => (data === null || data === undefined ? null : data.toString());

/** Rows as the other drivers print them: by partition, then offset. */
const sorted = (rows) => rows.sort((a, b) => a[0] - b[0] || a[1] - b[1]);

/** `secure` is told how to get into a server that wants TLS and SASL, if that is one. */
function main(scenarios, secure) {
  const [name, json] = process.argv.slice(2);
  const { security, ...rest } = JSON.parse(json);
  if (security) secure({ ...security, ca: fs.readFileSync(security.ca, 'utf-8') });
  scenarios[name](rest).then(
    (result) => process.stdout.write(JSON.stringify(result) + '\n', () => process.exit(0)),
    (error) => process.stderr.write(`${error.stack}\n`, () => process.exit(1)),
  );
}

module.exports = { until, text, sorted, main };
