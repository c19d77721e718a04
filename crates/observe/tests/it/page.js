"use strict";
// Runs the script of the web page on a document of stubs: `node page.js SCRIPT`.
const assert = require("node:assert");
const fs = require("node:fs");
const vm = require("node:vm");

class Stub {
  constructor() {
    Object.assign(this, { style: {}, textContent: "", value: "", hidden: true, clientWidth: 600, clientHeight: 190 });
  }
  setAttribute() {}
  append() {}
  replaceChildren() {}
  addEventListener(kind, action) { this[kind] = action; }
}
const stubs = {};
const page = vm.createContext({
  document: {
    getElementById: id => stubs[id] ??= new Stub(),
    createElement: () => new Stub(),
    createElementNS: () => new Stub(),
    querySelector: () => ({ open: false }),
  },
  performance,
  // The script looks again when the test says so.
  setTimeout() {},
  fetch: async path => {
    if (path === "/schema.json") return { json: async () => [] };
    if (answer === null) throw new Error("refused");
    return { ok: true, json: async () => answer };
  },
});
let answer = null;
const value = code => vm.runInContext(code, page);
const look = async document => {
  answer = document;
  await value("look()");
};

/** A document of an IOKernel that has made so many iterations. */
const document = (iterations, classes = []) => ({
  loop: { iterations }, account: [], handoff: {}, switch: {}, runtimes: [{ id: 0, name: "web", pid: 1, counters: {}, classes }],
});
const shown = () => value("kept.cores.get('service').filter(one => one !== null).length");

async function main() {
  value(fs.readFileSync(process.argv[2], "utf8"));
  await new Promise(done => setImmediate(done));
  assert.match(stubs.problem.textContent, /does not answer/);

  await look(document(100));
  await look(document(200));
  assert.deepStrictEqual([shown(), value("past.length"), stubs.problem.hidden], [1, 2, true]);
  await look(document(5));
  assert.deepStrictEqual([shown(), value("past.length")], [1, 1], "two IOKernels are not compared");
  await look(document(6));
  assert.strictEqual(shown(), 2);
  stubs.pause.click();
  assert.deepStrictEqual([value("past.length"), value("last")], [0, null], "a pause is a gap");
  await look(document(7));
  assert.strictEqual(value("last"), null, "an answer that comes during a pause is not used");
  stubs.pause.click();
  await look(document(8));
  assert.strictEqual(shown(), 2);
  await look(null);
  assert.deepStrictEqual([value("past.length"), stubs.problem.hidden], [0, false]);

  // More values than a call may have arguments.
  const one = name => ({ name, dispatcher: 0, latency_ns: { p50: 1, p99: 2000 } });
  const many = Array.from({ length: 1000 }, (_, at) => one(`c${at}`));
  await look(document(9, many));
  await look(document(10, many));
  value("for (const values of kept.latency.series.values()) values.fill(2)");
  await look(document(11, many));
  // A defect is not called an absent server.
  await look(document(12));
  await assert.rejects(look({ loop: { iterations: 13 }, runtimes: [null] }));
}
main().catch(error => {
  console.error(error);
  process.exit(1);
});
