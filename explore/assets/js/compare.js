// Two pinned answers side by side, with their questions and what differs.

import { byId, h } from "./dom.js";
import { amount, gib, layoutText, percent, rate, seconds, signed } from "./format.js";
import { FACTORS, tokensOf } from "./questions.js";
import { sharesList } from "./answer.js";

const LESS_IS_BETTER = [
  ["Step", (one) => one.estimate.step_time_s, seconds],
  ["Memory of the fullest GPU", (one) => one.estimate.memory.largest_bytes, gib],
  ["Pipeline bubble", (one) => one.estimate.bubble_share, percent],
  ["Training time", (one) => training(one)?.time_s, seconds],
  ["GPU hours", (one) => training(one)?.hours, amount],
  ["Price", (one) => training(one)?.price, amount],
];
const MORE_IS_BETTER = [
  ["Tokens per second", (one) => one.estimate.tokens_per_s, rate],
  ["Tokens per second and GPU", (one) => one.estimate.tokens_per_s / one.estimate.parallelism.world_size, rate],
  ["MFU", (one) => one.estimate.mfu, percent],
];

function training({ estimate, state }) {
  const tokens = tokensOf(state);
  if (!tokens) return null;
  const time_s = tokens / estimate.tokens_per_s, hours = (time_s / 3600) * estimate.parallelism.world_size;
  return { time_s, hours, price: Number(state.price) > 0 ? hours * Number(state.price) : undefined };
}

const QUESTION = [
  ["Hardware", (one) => one.state.hardware || "your bundle"],
  ["Fabric", (one) => one.estimate.provenance.collectives?.name ?? "the bundle's"],
  ["Network rate", (one) => `× ${FACTORS[one.state.network] ?? 1}`],
  ["Model", (one) => one.estimate.model.name],
  ["Attention", (one) => one.estimate.model.attention],
  ["Flash kernel", (one) => one.estimate.parallelism.attention_kernel],
  ["Training software", (one) => one.state.stack || "none"],
  ["GPUs", (one) => String(one.estimate.parallelism.world_size)],
  ["Global batch", (one) => String(one.state.batch)],
  ["Sequence", (one) => String(one.estimate.model.sequence_length)],
  ["Layout", (one) => layoutText(one.estimate.parallelism)],
  ["90 % interval", (one) => (one.estimate.interval_s ?? []).map(seconds).join(" to ")],
];

/** `answers`: [{state, estimate, pictures}]; `remove(index)` and `open(index)` are what the buttons do. */
export function showCompared(answers, { remove, open }) {
  byId("compare").hidden = !answers.length;
  const letters = ["A", "B"], two = answers.length === 2;
  const heads = answers.map((one, index) => h("th", { scope: "col", class: "text" }, `${letters[index]} `,
    h("button", { type: "button", class: "small", onclick: () => open(index) }, "show"), " ",
    h("button", { type: "button", class: "small", onclick: () => remove(index), "aria-label": `Unpin ${letters[index]}` }, "unpin")));
  const row = (name, cells, difference) => h("tr", {}, h("th", { scope: "row" }, name), cells.map((text) => h("td", { class: "text" }, text)), two ? h("td", {}, difference ?? "") : null);
  const measured = (rows, sign) => rows.map(([name, value, text]) => {
    const values = answers.map(value);
    if (values.every((one) => one === null || one === undefined)) return null;
    let difference = null;
    if (two && values[0] > 0 && values[1] !== undefined && values[1] !== null) {
      const change = values[1] / values[0] - 1;
      difference = h("span", { class: Math.abs(change) < 5e-4 ? null : change * sign < 0 ? "better" : "worse" }, signed(change));
    }
    return row(name, values.map((one) => (one === null || one === undefined ? "–" : text(one))), difference);
  });
  const asked = QUESTION.map(([name, text]) => {
    const texts = answers.map(text);
    return row(name, texts, two && texts[0] !== texts[1] ? "differs" : null);
  });
  byId("compared").replaceChildren(
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Pinned answers" },
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "text" }), heads, two ? h("th", { scope: "col" }, "B against A") : null)),
        h("tbody", {}, asked, measured(LESS_IS_BETTER, 1), measured(MORE_IS_BETTER, -1)))),
    h("div", { class: "columns" }, answers.map((one, index) => h("div", {}, h("h3", {}, `Where the time of ${letters[index]} goes`), sharesList(one.pictures.shares)))),
    ...(two ? [] : [h("p", { class: "hint" }, "Pin a second answer to compare: choose another layout, hardware or model first.")]),
  );
}
