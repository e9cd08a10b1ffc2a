// The whole run on the calendar: where its days go, tokens over days, and the interval between checkpoints.

import { ask } from "./api.js";
import { sharesList } from "./answer.js";
import { byId, drawn, h, legend } from "./dom.js";
import { amount, gib, percent, seconds, whole } from "./format.js";

const DAY_S = 86_400;
const STYLES = { steps: "forward", detection: "reduce", restart: "optimizer", recomputation: "backward", checkpoint: "gather", evaluation: "weight", maintenance: "tensor", queue: "bubble" };
let asked = 0;

/** Asks for the plan of a layout's run and shows it; nothing without tokens. */
export async function showRun(body, { tokens, price }) {
  const mine = (asked += 1);
  byId("run").hidden = !(tokens > 0);
  if (!(tokens > 0)) return;
  const plan = await ask("/plan", { ...body, tokens, ...(price > 0 ? { price } : {}) });
  if (mine !== asked) return;
  const days = (value) => seconds(value * DAY_S);
  const low = plan.goodput_interval.map((one) => percent(one));
  const tiles = [
    ["Calendar", days(plan.days.p50), `at 50 %; ${days(plan.days.p90)} at 90 %, ${days(plan.days.p95)} at 95 %`],
    ["Goodput", percent(plan.goodput), `${low[0]} to ${low[1]} (90 %)`],
    ["Interruptions", whole(plan.interruptions), plan.failures.mean_hours ? `one in ${seconds(plan.failures.mean_hours * 3600)}` : "none"],
    ["Checkpoint", gib(plan.checkpoint.total_bytes), `waits ${seconds(plan.checkpoint.stall_s)}, written in ${seconds(plan.checkpoint.storage_s)}`],
    ["GPU hours", amount(plan.gpu_hours), plan.cost === null ? "" : `cost ${amount(plan.cost)}`],
  ];
  byId("run-tiles").replaceChildren(...tiles.map(([name, value, note]) => h("div", {}, h("dt", {}, name), h("dd", {}, value), note ? h("dd", { class: "note" }, note) : null)));
  const parts = [["steps", plan.days.productive], ...Object.entries(plan.lost_days)].filter(([, one]) => one > 1e-4 * plan.days.mean);
  byId("run-calendar").replaceChildren(...sharesList(parts.map(([name, one]) => ({ name, time_s: one * DAY_S, style: STYLES[name] }))));
  byId("run-fan").replaceChildren(drawn(fan(plan)), legend([{ style: "forward", text: "tokens over days: median, 50 % and 90 % of simulated runs" }]));
  showInterval(plan, days);
  const helps = Object.entries(plan.helps_days).filter(([, one]) => one > 1e-3).slice(0, 3);
  byId("run-note").textContent = [helps.length ? `Halved alone: ${helps.map(([name, one]) => `${name} saves ${days(one)}`).join(", ")}` : "", ...plan.warnings].filter(Boolean).join(". ");
}

function fan({ fan: points, tokens }) {
  const most = points.at(-1)[5], width = 600, height = 200, left = 46, bottom = 22;
  const x = (one) => (left + ((width - left - 6) * one) / most).toFixed(1), y = (share) => ((height - bottom) * (1 - share) + 6).toFixed(1);
  const band = (low, high) => [...points.map((one) => `${x(one[low])},${y(one[0])}`), ...[...points].reverse().map((one) => `${x(one[high])},${y(one[0])}`)].join(" ");
  const step = 10 ** Math.floor(Math.log10(most)), tick = most / step > 5 ? step * 2 : most / step > 2 ? step : step / 2;
  const ticks = Array.from({ length: Math.floor(most / tick) + 1 }, (_, index) => index * tick);
  return `<svg viewBox="0 0 ${width} ${height + 10}" role="img" aria-label="Tokens over days" class="fan">
    <polygon class="forward" fill-opacity="0.25" points="${band(1, 5)}"/><polygon class="forward" fill-opacity="0.4" points="${band(2, 4)}"/>
    <polyline class="line" fill="none" stroke="currentColor" points="${points.map((one) => `${x(one[3])},${y(one[0])}`).join(" ")}"/>
    ${ticks.map((one) => `<text x="${x(one)}" y="${height + 6}" text-anchor="middle">${+one.toPrecision(3)}</text>`).join("")}
    ${[0, 0.5, 1].map((one) => `<text x="${left - 6}" y="${Number(y(one)) + 4}" text-anchor="end">${amount(tokens * one)}</text>`).join("")}
    <text x="${width - 6}" y="${height - 26}" text-anchor="end">days</text></svg>`;
}

function showInterval({ intervals, checkpoint, step }, days) {
  const slider = byId("run-interval"), best = intervals.findIndex(([steps]) => steps === checkpoint.every_steps);
  const say = () => {
    const [steps, takes] = intervals[Number(slider.value)];
    byId("run-interval-value").textContent = `every ${whole(steps)} steps, ${seconds(steps * step.mean_s)}: ${days(takes)} on average` +
      `${Number(slider.value) === best ? " (the best)" : `, ${seconds((takes - intervals[best][1]) * DAY_S)} more than the best`}`;
  };
  slider.max = String(intervals.length - 1);
  slider.value = String(best);
  slider.oninput = say;
  say();
}
