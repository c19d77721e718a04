"use strict";
// Shows the statistics, which it asks for once a second. Names of programs are written as text
// only. Every number is one of USES, which a test compares with the list of statistics.
const USES = [
  "account[].ns.service", "account[].ns.service_idle", "account[].ns.batch", "account[].ns.batch_idle",
  "account[].ns.wake", "account[].ns.cede", "account[].ns.start", "account[].ns.free",
  "handoff.<kind>.running_ns", "loop.iterations",
  "runtimes[].counters.cores", "runtimes[].counters.core_ns", "runtimes[].counters.grants", "runtimes[].counters.rx_frames",
  "runtimes[].counters.tx_frames", "runtimes[].counters.rx_full", "runtimes[].counters.throttled",
  "runtimes[].counters.late_ns", "runtimes[].counters.preempted", "runtimes[].kthreads",
  "runtimes[].queued_threads", "runtimes[].waiting_rings",
  "runtimes[].classes[].accepted", "runtimes[].classes[].finished", "runtimes[].classes[].dropped",
  "runtimes[].classes[].latency_ns", "runtimes[].classes[].slo_ns", "batch_jobs[].usage.core_ns",
];
const OWNERS = [
  ["service", "service", ["service"]], ["service, idle", "polling", ["service_idle"]],
  ["batch", "batch", ["batch", "batch_idle"]], ["hand-off", "handoff", ["wake", "cede", "start"]],
  ["free", "free", ["free"]],
];
const KEPT = 300;
const SVG = "http://www.w3.org/2000/svg";
const $ = id => document.getElementById(id);

/** The number that `object` has of a listed statistic. */
function num(object, name) {
  if (!USES.includes(name)) throw new Error(`${name} is not listed in USES`);
  return object?.[name.split(".").pop()] ?? 0;
}
/** By how much a counter grew; one that is smaller began anew. */
const growth = (from, to) => to >= from ? to - from : to;

/** Numbers in ascending order with ranges: 1-4, 7. */
function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[1] + 1 === number) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([from, to]) => from === to ? `${from}` : `${from}-${to}`).join(", ");
}

function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "color") made.style.background = `var(--${value})`;
    else if (key === "width") made.style.width = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "fill" || key === "stroke") made.style[key] = value;
    else made.setAttribute(key, value);
  }
  if (text !== undefined) made.textContent = text;
  return made;
}

function short(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return "over 10 s";
  const abs = Math.abs(value);
  if (abs >= 999.5e6) return (value / 1e9).toFixed(1) + "G";
  if (abs >= 999.5e3) return (value / 1e6).toFixed(1) + "M";
  if (abs >= 9999.5) return (value / 1e3).toFixed(0) + "k";
  if (abs >= 9.95 || Number.isInteger(value)) return value.toFixed(0);
  return abs >= 0.995 ? value.toFixed(1) : value.toFixed(2);
}
/** A time given in microseconds, in the unit that suits it. */
const time = us => us >= 1e6 ? `${short(us / 1e6)} s` : us >= 1000 ? `${short(us / 1000)} ms` : us >= 1 ? `${short(us)} us` : `${short(us * 1000)} ns`;
const us = ns => ns ? short(ns / 1000) : "–";

/** Draws series over the last KEPT seconds: stacked areas, or lines on a logarithmic scale. */
function chart(svg, series, { stacked, top, names }) {
  const width = svg.clientWidth || 600, height = svg.clientHeight || 190;
  const [left, right, above, below] = [54, 8, 8, 20];
  const inner = { w: width - left - right, h: height - above - below };
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const x = at => left + inner.w * at / (KEPT - 1);
  let y, ticks;
  if (stacked) {
    const step = Math.max(1, Math.ceil(top / 4));
    y = value => above + inner.h * (1 - value / top);
    ticks = [];
    for (let value = 0; value <= top; value += step) ticks.push(value);
  } else {
    const found = series.flatMap(one => one.values).filter(value => value > 0);
    const low = Math.floor(Math.log10(found.reduce((least, value) => Math.min(least, value), 1e12)));
    const high = Math.max(low + 1, Math.ceil(Math.log10(found.reduce((most, value) => Math.max(most, value), 1e-12))));
    const [from, to] = found.length ? [low, high] : [0, 3];
    y = value => above + inner.h * (1 - (Math.log10(value) - from) / (to - from));
    ticks = [];
    for (let value = from; value <= to; value += 1) ticks.push(10 ** value);
  }
  for (const value of ticks) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, stacked ? short(value) : time(value)));
  }
  for (const [at, words] of [[0, "5 min ago"], [KEPT / 2, "2.5 min"], [KEPT - 1, "now"]]) {
    const anchor = at === 0 ? "start" : at === KEPT - 1 ? "end" : "middle";
    svg.append(shape("text", { x: x(at), y: height - 5, "text-anchor": anchor }, words));
  }
  if (stacked) drawStacked(svg, series, x, y);
  else drawLines(svg, series, x, y);
  if (!series.some(one => one.values.some(value => value !== null))) {
    svg.append(shape("text", { x: left + inner.w / 2, y: above + inner.h / 2, "text-anchor": "middle" }, names));
  }
}
function drawStacked(svg, series, x, y) {
  const base = new Array(KEPT).fill(0);
  for (const one of series) {
    const upper = [], lower = [];
    const flush = () => {
      if (upper.length) svg.append(shape("polygon", { points: [...upper, ...lower.reverse()].join(" "), fill: `var(--${one.color})` }));
      upper.length = lower.length = 0;
    };
    one.values.forEach((value, at) => {
      if (value === null) return flush();
      // Steps: an area is as wide as the second that it is about.
      const [from, to] = [x(Math.max(0, at - 1)), x(at)];
      lower.push(`${from},${y(base[at])}`, `${to},${y(base[at])}`);
      base[at] += value;
      upper.push(`${from},${y(base[at])}`, `${to},${y(base[at])}`);
    });
    flush();
  }
}
function drawLines(svg, series, x, y) {
  for (const one of series) {
    let points = [];
    const flush = () => {
      if (points.length === 1) points.push(points[0].replace(/^[^,]+/, at => String(Number(at) + 2)));
      if (points.length) svg.append(shape("polyline", { points: points.join(" "), fill: "none", stroke: `var(--${one.color})`, "stroke-width": 2 }));
      points = [];
    };
    one.values.forEach((value, at) => value > 0 ? points.push(`${x(at)},${y(value)}`) : flush());
    flush();
  }
}
function spark(values, color) {
  const svg = shape("svg", { class: "spark", viewBox: "0 0 110 20", preserveAspectRatio: "none", "aria-hidden": "true" });
  const shown = values.slice(-110), top = Math.max(...shown.map(value => value ?? 0), 1e-9);
  const points = shown.map((value, at) => `${at + 110 - shown.length},${19 - 17 * (value ?? 0) / top}`);
  if (top > 1e-9) svg.append(shape("polyline", { points: points.join(" "), fill: "none", stroke: `var(--${color})`, "stroke-width": 1.5 }));
  return svg;
}

/** Fills a table; a cell is text, an element, or [text, class]. */
function table(id, heads, rows, empty) {
  const cell = (kind, content) => {
    const [value, style] = Array.isArray(content) ? content : [content, ""];
    return node(kind, style ? { class: style } : {}, value);
  };
  const head = node("tr", {}, ...heads.map(content => cell("th", content)));
  const body = rows.length ? rows.map(row => node("tr", {}, ...row.map(content => cell("td", content))))
    : [node("tr", {}, node("td", { colspan: heads.length, class: "dim" }, empty))];
  $(id).replaceChildren(node("thead", {}, head), node("tbody", {}, ...body));
}

/** Values of the last KEPT seconds by name; null where there is none. */
class History {
  constructor() { this.series = new Map(); }
  push(values) {
    for (const name of values.keys()) if (!this.series.has(name)) this.series.set(name, new Array(KEPT).fill(null));
    for (const [name, all] of this.series) {
      all.push(values.get(name) ?? null);
      all.shift();
      if (all.every(value => value === null)) this.series.delete(name);
    }
  }
  get(name) { return this.series.get(name) ?? new Array(KEPT).fill(null); }
}
const kept = { cores: new History(), latency: new History(), handoffs: new History(), drops: new History() };
const past = [];
let last = null, schema = [], paused = false;

const same = (list, one, keys) => (list ?? []).find(other => keys.every(key => other[key] === one[key]));

function showCores(from, to) {
  const cores = (to.account ?? []).map(core => {
    const before = same(from.account, core, ["core"]);
    const times = OWNERS.map(([, , phases]) => phases.reduce((sum, phase) =>
      sum + growth(num(before?.ns, `account[].ns.${phase}`), num(core.ns, `account[].ns.${phase}`)), 0));
    const all = times.reduce((sum, time) => sum + time, 0);
    return { number: core.core, shares: times.map(time => all ? time / all : 0) };
  });
  const sums = OWNERS.map((_, at) => cores.reduce((sum, core) => sum + core.shares[at], 0));
  kept.cores.push(new Map(OWNERS.map(([, color], at) => [color, sums[at]])));
  $("owners").replaceChildren(...OWNERS.map(([name, color], at) =>
    node("li", {}, node("span", { class: "swatch", color }), `${name} `, node("b", {}, sums[at].toFixed(2)))));
  $("bars").replaceChildren(...cores.map(core => {
    const parts = OWNERS.slice(0, 4).map(([, color], at) => node("span", { color, width: `${100 * core.shares[at]}%` }));
    const busy = Math.round(100 * (core.shares[0] + core.shares[2]));
    const words = OWNERS.map(([name], at) => `${name} ${Math.round(100 * core.shares[at])} %`).join(", ");
    return node("div", { class: "core", title: words }, node("span", {}, `core ${core.number}`), node("div", { class: "bar" }, ...parts), node("span", {}, `${busy} %`));
  }));
  const series = OWNERS.map(([, color]) => ({ color, values: kept.cores.get(color) }));
  chart($("cores"), series, { stacked: true, top: Math.max(1, cores.length), names: "no core is managed" });
}

function showPrograms(from, to, seconds) {
  const at = name => `runtimes[].counters.${name}`;
  const rows = (to.runtimes ?? []).map(program => {
    const before = same(from.runtimes, program, ["id", "name", "pid"]);
    const rate = key => growth(num(before?.counters, at(key)), num(program.counters, at(key))) / seconds;
    // The counter grows when a core changes hands, not while a program keeps its cores.
    const held = num(program.counters, at("cores"));
    const keeps = before && held === num(before.counters, at("cores")) && rate("grants") === 0;
    const used = keeps ? held : Math.min(rate("core_ns") / 1e9, num(program, "runtimes[].kthreads"));
    const dropped = rate("rx_full"), late = rate("late_ns") / 1e6;
    const queued = num(program, "runtimes[].queued_threads") + num(program, "runtimes[].waiting_rings");
    const cores = `${held} of ${num(program, "runtimes[].kthreads")}`;
    return [used, [program.name, [program.class === "best-effort" ? "batch" : "service", "word"], cores, used.toFixed(2),
      short(queued), short(rate("rx_frames")), short(rate("tx_frames")), [short(dropped), dropped ? "bad" : ""],
      short(rate("preempted")), [short(late), late ? "bad" : ""], [short(num(program.counters, at("throttled"))), num(program.counters, at("throttled")) ? "bad" : ""],
      [program.ip6 ? `${program.ip} ${program.ip6}` : program.ip, "word dim address"]]];
  });
  for (const job of to.batch_jobs ?? []) {
    const before = same(from.batch_jobs, job, ["pid"]);
    const name = "batch_jobs[].usage.core_ns";
    const used = growth(num(before?.usage, name), num(job.usage, name)) / 1e9 / seconds;
    rows.push([used, [job.name, ["batch job", "word"], "–", used.toFixed(2), "–", "–", "–", "–", "–", "–", "–", ["", "word address"]]]);
  }
  rows.sort((a, b) => b[0] - a[0]);
  table("programs", ["program", ["kind", "word"], "cores", "core s/s", "queued", "rx/s", "tx/s", "ring full/s", "preempted/s", node("span", { title: "time for which it kept services waiting" }, "late ms/s"), "throttled", ["address", "word address"]],
    rows.map(([, row]) => row), "no program is registered");
}

function showClasses(from, to, seconds) {
  const at = name => `runtimes[].classes[].${name}`;
  const found = (to.runtimes ?? []).flatMap(program => {
    const earlier = same(from.runtimes, program, ["id", "name", "pid"]);
    return (program.classes ?? []).map(one => ({ program, one, before: same(earlier?.classes, one, ["name", "dispatcher"]) }));
  });
  const name = ({ program, one }) => `${program.name} ${one.name}${one.dispatcher ? ` (${one.dispatcher})` : ""}`;
  kept.latency.push(new Map(found.map(each => [name(each), (num(each.one, at("latency_ns"))?.p99 ?? 0) / 1000])));
  const series = [...kept.latency.series.keys()].map((name, at) => ({ name, color: `s${Math.min(at, 5)}`, values: kept.latency.get(name) }));
  chart($("latency"), series, { stacked: false, names: "no program publishes classes of requests" });
  table("classes", ["class", "requests/s", "refused/s", "p50 us", "p99 us", "of SLO"], found.map(each => {
    const { one, before } = each;
    const color = series.find(other => other.name === name(each))?.color ?? "s5";
    const rate = key => growth(num(before, at(key)), num(one, at(key))) / seconds;
    const latency = num(one, at("latency_ns")), slo = num(one, at("slo_ns")), ratio = slo ? latency.p99 / slo : null;
    const refused = rate("dropped");
    return [node("span", {}, node("span", { class: "swatch", color }), name(each)), short(rate("finished")), [short(refused), refused ? "bad" : ""],
      us(latency.p50), us(latency.p99), [ratio === null ? "–" : ratio.toFixed(2), ratio > 1 ? "bad" : ""]];
  }), "programs that use dispatch show here");
}

/** Percentile, in nanoseconds, of the values between two readings of a histogram. */
function percentile(from, to, part, bounds) {
  const count = growth(from?.count ?? 0, to?.count ?? 0);
  if (!count) return null;
  const at = (to.buckets ?? []).findIndex((below, at) => growth(from?.buckets?.[at] ?? 0, below) >= part * count);
  return at < 0 ? Infinity : bounds[at];
}
function showHandoffs(from, to, seconds) {
  const name = "handoff.<kind>.running_ns", bounds = to.bucket_bounds_ns ?? [];
  const kinds = Object.keys(to.handoff ?? {});
  const rates = new Map(kinds.map(kind => [kind, growth(num(from.handoff?.[kind], name).count ?? 0, num(to.handoff[kind], name).count ?? 0) / seconds]));
  kept.handoffs.push(rates);
  const older = past[0] ?? from;
  table("handoffs", ["kind", "per second", "p50 up to, us", "p99 up to, us", "last minutes"], kinds.map(kind => {
    const [before, now] = [num(older.handoff?.[kind], name), num(to.handoff[kind], name)];
    const bound = part => { const ns = percentile(before, now, part, bounds); return ns === null ? "–" : short(ns / 1000); };
    return [kind, short(rates.get(kind)), bound(0.5), bound(0.99), spark(kept.handoffs.get(kind), "service")];
  }), "none");
}
function showDrops(from, to, seconds) {
  const keys = schema.filter(field => field.place === "switch" && field.key.startsWith("dropped_"));
  kept.drops.push(new Map(keys.map(({ key }) => [key, growth(from.switch?.[key] ?? 0, to.switch?.[key] ?? 0) / seconds])));
  const rows = keys.filter(({ key }) => to.switch?.[key]).map(({ key, help }) => {
    const rate = kept.drops.get(key).at(-1);
    return [node("span", { title: help }, key.slice(8)), [short(rate), rate ? "bad" : ""], short(to.switch[key]), spark(kept.drops.get(key), "bad")];
  });
  table("drops", ["reason", "per second", "in all", "last minutes"], rows, "no frame has been dropped");
}

/** All values of a document at a place such as runtimes[].counters. */
function values(document, place, key) {
  let at = [document];
  for (const step of place ? place.split(".") : []) {
    const isList = step.endsWith("[]"), name = isList ? step.slice(0, -2) : step;
    at = at.flatMap(one => step.startsWith("<") ? Object.values(one ?? {}) : [one?.[name]]).filter(one => one !== undefined && one !== null);
    if (isList) at = at.flatMap(one => Array.isArray(one) ? one : []);
  }
  return at.map(one => one?.[key]).filter(value => value !== undefined && value !== null);
}
function showAll(to) {
  if (!document.querySelector("details").open) return;
  const wanted = $("search").value.toLowerCase();
  const rows = schema.filter(field => `${field.place}.${field.key} ${field.help}`.toLowerCase().includes(wanted)).flatMap(field => {
    const found = values(to, field.place, field.key);
    if (!found.length) return [];
    const words = found.slice(0, 8).map(value => typeof value === "object" ? `${short(value.count ?? value.p99)}${value.count === undefined ? "" : " values"}` : short(Number(value)));
    return [[`${field.place ? `${field.place}.` : ""}${field.key}`, words.join(", ") + (found.length > 8 ? ", …" : ""), [field.help, "word"]]];
  });
  table("all", ["statistic", "value", ["meaning", "word"]], rows, "nothing is called that");
}

function show(from, to, seconds) {
  const facts = to.iokernel ?? {};
  $("head").textContent = `IOKernel ${facts.version} on core ${facts.iokernel_core}, lends ${ranges(facts.managed_cores ?? [])}, policy ${facts.policy}`;
  showCores(from, to);
  showPrograms(from, to, seconds);
  showClasses(from, to, seconds);
  showHandoffs(from, to, seconds);
  showDrops(from, to, seconds);
  showAll(to);
}
/** Leaves a gap in the charts: what comes next is not compared with what was before. */
function gap() {
  for (const one of Object.values(kept)) one.push(new Map());
  past.length = 0;
  last = null;
}
function fail(why) {
  $("problem").hidden = false;
  $("problem").textContent = why;
  gap();
}
async function look() {
  let now;
  try {
    const answer = await fetch("/stats.json");
    if (!answer.ok) return fail(await answer.text());
    now = { document: await answer.json(), at: performance.now() };
  } catch {
    return fail("tailwater metrics does not answer: has it ended?");
  }
  if (paused) return;
  $("problem").hidden = true;
  const count = "loop.iterations";
  // Another IOKernel, which counts from 0.
  if (last && num(now.document.loop, count) < num(last.document.loop, count)) gap();
  if (last) show(last.document, now.document, Math.max(0.1, (now.at - last.at) / 1000));
  last = now;
  past.push(now.document);
  if (past.length > 11) past.shift();
}
async function run() {
  $("pause").addEventListener("click", () => {
    paused = !paused;
    if (paused) gap();
    $("pause").textContent = paused ? "Go on" : "Pause";
  });
  try { schema = await (await fetch("/schema.json")).json(); } catch { /* The looks say it. */ }
  for (;;) {
    // A defect of the page is not one of the server, and the next document may be another.
    if (!paused) await look().catch(error => fail(`this page cannot show the statistics: ${error}`));
    await new Promise(done => setTimeout(done, 1000));
  }
}
run();
