// One layout's answer: headline figures, breakdown, timeline, memory, operators, warnings.

import { byId, drawn, h, legend } from "./dom.js";
import { amount, degrees, gib, percent, rate, schedule, seconds, signed, whole } from "./format.js";

/** Headline figures as [name, value, note, is bad]. `training` is null without tokens. */
export function figures(estimate, { tokens, price }) {
  const devices = estimate.parallelism.world_size, memory = estimate.memory;
  const [low, high] = estimate.interval_s ?? [null, null];
  const found = [
    ["Step", seconds(estimate.step_time_s), low === null ? "" : `${graded(estimate.grade)}; 90 % interval ${seconds(low)} to ${seconds(high)}`],
    ["Tokens per second", rate(estimate.tokens_per_s), `${rate(estimate.tokens_per_s / devices)} per GPU`],
    ["MFU", percent(estimate.mfu), estimate.peak ? `${Math.round(estimate.tflops_per_device)} of ${Math.round(estimate.peak.flops_per_s / 1e12)} TFLOP/s` : ""],
    ["Memory", gib(memory.largest_bytes), memory.gpu_memory_bytes === null ? "of the fullest GPU"
      : `of ${gib(memory.gpu_memory_bytes)}: ${memory.fit_verdict}${memory.fit_probability === null ? "" : ` (probability ${memory.fit_probability.toFixed(2)})`}`,
      memory.fit_verdict === "does not fit"],
    ["Pipeline bubble", percent(estimate.bubble_share), "of the time until the last pass ends"],
  ];
  if (estimate.energy) found.push(["Energy", `${(estimate.energy.step_kwh).toPrecision(3)} kWh`, `a step; ${whole(estimate.energy.mean_power_w)} W per GPU`]);
  if (tokens) {
    const time_s = tokens / estimate.tokens_per_s, hours = (time_s / 3600) * devices;
    const between = (all, written) => low === null ? "" : `, ${written(all * low / estimate.step_time_s)} to ${written(all * high / estimate.step_time_s)}`;
    found.push([`Training on ${amount(tokens)} tokens`, seconds(time_s), `${whole(hours)} GPU hours${between(time_s, seconds)}`]);
    if (price > 0) found.push(["Price", amount(hours * price), `at ${price} per GPU hour${between(hours * price, amount)}`]);
  }
  return found;
}

export function showHeadline(estimate, { best_s, rank, tokens, price }) {
  const one = estimate.parallelism;
  byId("answer").hidden = false;
  byId("answer-title").textContent = `${degrees(one)} · ${schedule(one)}`;
  const place = rank === null ? "not among the layouts above" : rank === 0 ? "the fastest that fits" : `number ${rank + 1} above`;
  const against = best_s && rank !== 0 ? `, ${signed(estimate.step_time_s / best_s - 1)} against the fastest` : "";
  byId("answer-note").textContent =
    `${place}${against}; ${one.micro_batches} micro-batches of ${one.micro_batch}, recompute ${one.recompute}, ZeRO ${one.zero}` +
    `${one.sequence_parallel ? ", sequence parallel" : ""}${one.attention_kernel === "as-measured" ? "" : `, attention as ${one.attention_kernel}`}; layers ${shortCounts(estimate.layer_counts)} on ${estimate.provenance.compute.join("; ")}`;
  byId("tiles").replaceChildren(...figures(estimate, { tokens, price }).map(([name, value, note, bad]) =>
    h("div", { class: bad ? "bad" : null }, h("dt", {}, name), h("dd", {}, value), note ? h("dd", { class: "note" }, note) : null)));
}

/** The grade with its cause; the interval, which its reason begins with, stands next to it. */
function graded({ grade, reason }) {
  const cause = reason.split("; ").slice(1).join("; ");
  return cause ? `${grade}: ${cause}` : grade;
}

function shortCounts(counts) {
  if (counts.every((one) => one === counts[0])) return counts.length > 1 ? `${counts.length} × ${counts[0]}` : String(counts[0]);
  return counts.length > 16 ? `${counts.slice(0, 8).join(", ")} … ${counts.slice(-4).join(", ")}` : counts.join(", ");
}

export function sharesList(shares) {
  const all = shares.reduce((sum, one) => sum + one.time_s, 0), most = Math.max(...shares.map((one) => one.time_s));
  return [
    h("div", { class: "strip", "aria-hidden": "true" }, shares.map((one) => h("span", { class: one.style, style: { flex: `${one.time_s / all} 0 0` }, title: one.name }))),
    h("dl", { class: "shares" }, shares.flatMap((one) => [
      h("dt", {}, h("span", { class: `key ${one.style}` }), " ", one.name),
      h("dd", { class: "number", style: { margin: "0" } }, seconds(one.time_s)),
      h("dd", { class: "number", style: { margin: "0" } }, percent(one.time_s / all)),
      h("dd", { style: { margin: "0" }, "aria-hidden": "true" }, h("span", { class: `track ${one.style}`, style: { width: `${(100 * one.time_s) / most}%` } })),
    ])),
  ];
}

export function showPictures(pictures) {
  byId("breakdown").replaceChildren(...sharesList(pictures.shares));
  const { timeline, memory, memory_over_step: overStep } = pictures;
  byId("timeline").replaceChildren(
    ...(timeline.svg ? [scrolling("Timeline", drawn(timeline.svg)), legend(timeline.legend)] : []),
    ...(timeline.notes.length ? [h("p", { class: "hint" }, timeline.notes.join("; "))] : []),
  );
  const along = overStep.svg ? [h("h3", {}, "Over the step"), scrolling("Memory over the step", drawn(overStep.svg)), legend(overStep.legend)] : [];
  byId("memory").replaceChildren(scrolling("Memory", drawn(memory.svg)), legend(memory.legend), ...along);
  byId("operators").replaceChildren(operators(pictures.operators));
  byId("warnings").replaceChildren(...warnings(pictures.warnings));
}

const scrolling = (label, content) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, content);

function operators(rows) {
  const cells = (one) => [[one.operator, "text"], [one.role, "text"], [one.direction, "text"], [whole(one.calls)], [seconds(one.time_s / one.calls)], [seconds(one.time_s)]];
  const heads = [["Operator", "text"], ["Role", "text"], ["Direction", "text"], ["Calls"], ["Mean"], ["GPU time"]];
  return scrolling("Operators", h("table", {}, h("thead", {}, h("tr", {}, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))),
    h("tbody", {}, rows.map((one) => h("tr", {}, cells(one).map(([text, kind]) => h("td", { class: kind }, text)))))));
}

function warnings(groups) {
  if (!groups.length) return [];
  const each = groups.flatMap((one) => one.each);
  return [h("section", { class: "warnings", "aria-label": "Warnings" }, h("h3", {}, "What this answer rests on"),
    h("ul", {}, groups.map((one) => h("li", {}, one.line))),
    h("details", {}, h("summary", {}, `Each of ${each.length} warning${each.length === 1 ? "" : "s"}`), h("ul", {}, each.map((one) => h("li", {}, one)))))];
}
