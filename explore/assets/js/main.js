// The page: state in the address, questions to the server, answers into the parts of the page.

import { Lost, Newest, Refused, ask } from "./api.js";
import { showHeadline, showPictures } from "./answer.js";
import { Pareto } from "./chart.js";
import { showCompared } from "./compare.js";
import { byId, copied, download, h, options } from "./dom.js";
import { SCHEDULES, amount, counted, gib, whole } from "./format.js";
import { jobText } from "./jobs.js";
import { showRun } from "./run.js";
import { FACTORS, OPTIMIZERS, OWN, described, layoutBody, searchBody, tokensOf } from "./questions.js";
import { Sliders } from "./sliders.js";
import { DEFAULTS, LAYOUT_FIELDS, fresh, read, written } from "./state.js";
import { LayoutTable } from "./table.js";
import { acceptConfigs } from "./upload.js";

const CONTROLS = Object.keys(DEFAULTS);
// What leaves a chosen layout as it is.
const KEEPS_LAYOUT = ["network", "attention", "kernel", "stack", "price", "tokens", "top", "fabric", "hardware"];
const ONLY_SHOWN = ["price", "tokens"];
const FP8_RECIPES = ["tensorwise", "delayed", "rowwise", "blockwise", "mxfp8", "nvfp4", "nvfp4_plain"];
const CONFIG = "\u0000config";
const FULL_AFTER_MS = 250;
const RETRY_MS = 2000;

let state = read(location.hash.slice(1));
let catalogue = null, model = null, rows = [], estimate = null, answered = null, pins = [];
let searching = null, lost = null, working = 0;
/** The field that is written in: its text is not the question's yet, and no answer that arrives replaces it. */
let typing = null;
const newest = new Newest();

const table = new LayoutTable(byId("table"), choose);
const chart = new Pareto(byId("chart"), choose);
const sliders = new Sliders(byId("sliders"), byId("slider-note"), change);

/** Counts what is under way; screen readers wait for it, as tests do. */
async function busy(task) {
  working += 1;
  byId("answers").setAttribute("aria-busy", "true");
  try {
    return await task();
  } finally {
    working -= 1;
    byId("answers").setAttribute("aria-busy", String(working > 0));
  }
}

const soon = (task) => busy(() => newest.run(task));

/** Runs a task of the page; a refusal is shown where the question is, a lost server above everything. */
async function guarded(task) {
  try {
    await task();
    return true;
  } catch (error) {
    if (error.name === "AbortError") return false;
    if (error instanceof Lost) showLost();
    else if (error instanceof Refused || error instanceof RangeError) {
      byId("problem").textContent = error.message;
      byId("problem").hidden = false;
      status("");
    } else throw error;
    return false;
  }
}

function status(text, isBusy = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("busy", isBusy);
}

function showLost() {
  if (lost) return;
  byId("lost").textContent = "The server does not answer: it may have been ended in its terminal. Start it again with `kernelcast explore --port " +
    `${location.port}\`; this page goes on when it is back.`;
  byId("lost").hidden = false;
  status("");
  lost = setInterval(async () => {
    try {
      await ask("/health");
    } catch {
      return;
    }
    clearInterval(lost);
    lost = null;
    byId("lost").hidden = true;
    catalogue ? refresh() : start();
  }, RETRY_MS);
}

// The question ---------------------------------------------------------------------------------------------------

function fillControls() {
  const measured = (flag) => catalogue.hardware.filter((one) => one.is_measured === flag).map((one) => h("option", { value: one.name, title: one.device }, one.name));
  const own = catalogue.bundle.startsWith("hardware:") ? [] : [h("option", { value: OWN }, catalogue.bundle)];
  byId("hardware").replaceChildren(...own, h("optgroup", { label: "measured" }, measured(true)), h("optgroup", { label: "carried over from measured ones" }, measured(false)));
  options(byId("recompute"), [["", "any"], ["none", "none"], ["selective", "selective"], ["full", "full"]], state.recompute);
  options(byId("schedule"), [["", "usual"], ...Object.entries(SCHEDULES)], state.schedule);
  options(byId("zero"), [["", "any"], ["0", "0"], ["1", "1"], ["2", "2"], ["3", "3"]], state.zero);
  options(byId("framework"), [["", "none assumed"], ...catalogue.frameworks.map((one) => [one.name, one.title])], state.framework);
  options(byId("fp8"), [["", "none"], ...FP8_RECIPES.map((name) => [name, name])], state.fp8);
  options(byId("frozen"), [["", "16 bit"], ["nf4", "NF4 (QLoRA)"], ["nf4_double", "NF4, double"]], state.frozen);
  options(byId("objective"), [["", "next token"], ["dpo", "DPO"], ["dpo_precomputed", "DPO, reference precomputed"]], state.objective);
  options(byId("optimizer"), [["", "Adam, float32"], ...Object.entries(OPTIMIZERS).map(([name, one]) => [name, one.title])], state.optimizer);
  showControls();
}

function showControls() {
  const hardware = catalogue.hardware.find((one) => one.name === state.hardware);
  const usual = hardware ? `usual: ${hardware.fabric}` : "the bundle's";
  options(byId("fabric"), [["", usual], ...catalogue.fabrics.map((one) => [one.name, one.name]), ...catalogue.measured_fabrics.map((name) => [name, name])], state.fabric);
  const config = state.config ? [[CONFIG, `${state.config.name} (opened)`]] : [];
  options(byId("model"), [...config, ...catalogue.models.map((one) => [one.name, one.name])], state.config ? CONFIG : state.model);
  const kernel = model?.model.attention;
  options(byId("attention"), [["", kernel ? `the model's: ${kernel}` : "the model's"], ["flash", "flash"], ["fused_softmax", "fused_softmax"], ["unfused", "unfused"]], state.attention);
  // A kernel that another device runs stays in sight, with the server's refusal, until another one is chosen.
  const fused = new Set([...(hardware?.attention_kernels ?? catalogue.attention_kernels), ...(state.kernel ? [state.kernel] : [])]);
  options(byId("kernel"), [["", "as measured"], ...[...fused].map((name) => [name, name])], state.kernel);
  options(byId("stack"), [["", catalogue.frameworks.find((one) => one.name === state.framework)?.stack ? "the framework's" : "none: sums as they are"], ...catalogue.stacks.map((one) => [one.name, one.name])], state.stack);
  byId("stack-note").textContent = catalogue.stacks.find((one) => one.name === state.stack)?.software ?? "";
  for (const name of CONTROLS) if (!["fabric", "model", "attention", "kernel", "stack", typing].includes(name)) byId(name).value = state[name];
  byId("sequence").placeholder = model ? String(model.sequence_length) : "";
  byId("hardware-note").textContent = hardware ? `${hardware.device}, ${gib(hardware.memory_bytes)}` : "your bundle";
  byId("model-note").textContent = model ? modelNote() : "";
  const known = described(state, catalogue), between = known?.between;
  byId("network").disabled = !between;
  const factor = FACTORS[state.network] ?? 1;
  byId("network-value").textContent = `× ${factor < 1 ? `1/${1 / factor}` : factor}`;
  byId("network-note").textContent = between ? `${+((between.cards * between.gbit_per_s * factor) / known.devices_per_node).toPrecision(4)} Gbit/s per GPU between nodes`
    : "this fabric is measured, or within one node: choose a described one to change its rate";
}

function modelNote() {
  const active = model.active_parameters < model.parameters ? `, ${amount(model.active_parameters)} active` : "";
  return [`${amount(model.parameters)} parameters${active}, ${model.layers} layers`, ...model.notes].join("; ");
}

async function loadModel() {
  const asked = state.config ?? state.model;
  const found = await ask("/model", { model: asked });
  if (asked === (state.config ?? state.model)) model = found;
}

function changed(name, value) {
  state[name] = value;
  if (!KEEPS_LAYOUT.includes(name)) state.layout = null;
  remember();
  if (ONLY_SHOWN.includes(name)) return shownAlone(name, value);
  return refresh({ ofModel: name === "model" });
}

/** Tokens and price only scale the present answer. */
function shownAlone(name, value) {
  const isWrong = value !== "" && !(name === "tokens" ? counted(value) > 0 : Number(value) >= 0);
  byId(name).setAttribute("aria-invalid", String(isWrong));
  byId("problem").hidden = !isWrong;
  if (isWrong) byId("problem").textContent = `${name} is '${value}', expected ${name === "tokens" ? "a number such as 300B or 15T" : "a number such as 2.50"}`;
  if (estimate) headline();
  if (answered && !isWrong) planned();
}

/** The run of the answered layout; it follows the step's answer, which does not wait for it. */
const planned = () => busy(() => guarded(() => showRun(answered.body, { tokens: tokensOf(state), price: Number(state.price) })));

function remember() {
  const text = written(state);
  history.replaceState(null, "", text ? `#${text}` : location.pathname);
}

// Answers --------------------------------------------------------------------------------------------------------

/** Refresh everything: the model if it changed, a quick search, its best layout, then the whole search. */
function refresh({ ofModel = false } = {}) {
  searching?.abort();
  const mine = (searching = new AbortController());
  return busy(async () => {
    const isAnswered = (await guarded(() => searched(mine, ofModel))) || mine.signal.aborted;
    // What was answered before stays in sight, but not as if it were this question's.
    for (const part of [document.querySelector(".found"), byId("answer")]) part.classList.toggle("stale", !isAnswered && rows.length > 0);
    if (!isAnswered && rows.length && !lost) status("Shown is the answer to the question before.");
  });
}

async function searched(mine, ofModel) {
  byId("problem").hidden = true;
  const loading = ofModel || !model ? loadModel() : Promise.resolve();
  // A name is all that a search needs; fields of the model are only needed where the question changes them.
  const isNamed = !state.config && !state.attention;
  if (!isNamed || state.layout) await loading;
  if (mine.signal.aborted) return;
  if (model) showControls();
  const chosen = state.layout ? soon(() => guarded(() => showLayout(state.layout, null))) : null;
  status("Searching among usual layouts…", true);
  let quick = null;
  try {
    [quick] = await Promise.all([ask("/layouts", searchBody(state, catalogue, model?.model, { quick: true }), { signal: mine.signal }), loading]);
    showControls();
    takeRows(quick);
  } catch (error) {
    if (!(error instanceof Refused) || !/no valid layout|more than/.test(error.message)) throw error;
  }
  await chosen;
  status(`${lookedAt(quick)}; looking at all…`, true);
  await new Promise((done) => setTimeout(done, FULL_AFTER_MS));
  if (mine.signal.aborted) return;
  try {
    const full = await ask("/layouts", searchBody(state, catalogue, model.model, { quick: false }), { signal: mine.signal });
    takeRows(full);
    status(full.best ? lookedAt(full) : "");
    if (full.why_nothing) throw new Refused(full.why_nothing);
  } catch (error) {
    if (!(error instanceof Refused) || !quick?.best) throw error;
    status(`${lookedAt(quick)}. Only usual layouts: ${error.message}`);
  }
}

function lookedAt(found) {
  if (!found) return "";
  return `${whole(found.layouts)} layouts looked at, ${whole(found.out_of_memory)} do not fit into memory, ` +
    `the best ${whole(found.step_time_s.length)} shown; ${found.seconds.toFixed(2)} s`;
}

function takeRows(found) {
  const front = new Set(found.front), at = Object.fromEntries(found.columns.map((name, index) => [name, index]));
  const peak = found.peak?.flops_per_s;
  rows = found.rows.map((values, rank) => {
    const step_s = found.step_time_s[rank], devices = found.devices[rank];
    return { rank, step_s, memory_bytes: found.memory_bytes[rank], nccl_bytes: found.nccl_bytes[rank], isFront: front.has(rank), rate: found.tokens_per_step / step_s / devices,
      mfu: peak ? found.model_flops / step_s / devices / peak : null, layout: Object.fromEntries(LAYOUT_FIELDS.map((name) => [name, values[at[name]]])) };
  });
  const asked = found.asked, limit = asked.gpu_memory_bytes === null ? null : asked.gpu_memory_bytes - asked.reserved_memory_bytes;
  table.show(rows);
  chart.show(rows, limit);
  byId("table-title").textContent = rows.length ? `Best ${whole(rows.length)} layouts` : "No layout fits";
  if (!rows.length && !state.layout) byId("answer").hidden = true;
  if (rows.length && !state.layout) soon(() => guarded(() => showLayout(rows[0].layout, rows[0])));
  else if (estimate && (rows.length || state.layout)) mark();
}

const same = (one, other) => LAYOUT_FIELDS.every((name) => name === "layer_split" || one[name] === other[name]);

function mark() {
  const row = rows.find((one) => same(one.layout, answered.layout));
  table.chosen(row ? row.rank : null);
  chart.chosen({ step_s: estimate.step_time_s, memory_bytes: estimate.memory.largest_bytes,
    nccl_bytes: Object.values(estimate.memory.communicators).reduce((sum, one) => sum + one, 0) });
  headline();
}

function headline() {
  const row = rows.find((one) => same(one.layout, answered.layout));
  showHeadline(estimate, { best_s: rows[0]?.step_s, rank: row ? row.rank : null, tokens: tokensOf(state), price: Number(state.price) });
}

/** Asks for one layout and shows it; the three questions go out together. */
async function showLayout(layout) {
  const body = layoutBody(state, catalogue, model.model, layout);
  const [found, pictures, possible] = await Promise.all([ask("/predict", body), ask("/pictures", body), ask("/choices", body)]);
  estimate = found;
  answered = { layout: Object.fromEntries(LAYOUT_FIELDS.map((name) => [name, name === "layer_split" ? layout.layer_split : found.parallelism[name]])), body, pictures };
  byId("launch").hidden = !found.framework_arguments;
  sliders.show(possible.choices, answered.layout);
  mark();
  showPictures(pictures);
  planned();
}

function choose(row) {
  change(row.layout);
}

/** The user wants this layout. A slider that moves on asks again when the last answer has arrived. */
function change(layout) {
  state.layout = layout;
  byId("problem").hidden = true;
  return soon(async () => {
    const isShown = await guarded(() => showLayout(layout));
    if (isShown) remember();
    else if (answered) {
      state.layout = answered.layout;
      sliders.show((await ask("/choices", answered.body).catch(() => ({ choices: {} }))).choices, answered.layout);
    }
  });
}

// Pins, files, links ---------------------------------------------------------------------------------------------

async function showPins() {
  await busy(() => guarded(async () => {
    pins = await Promise.all(state.pins.map(async (text) => {
      const known = pins.find((one) => one.text === text);
      if (known) return known;
      const its = read(text);
      const found = await ask("/model", { model: its.config ?? its.model });
      const body = layoutBody(its, catalogue, found.model, its.layout);
      const [own, pictures] = await Promise.all([ask("/predict", body), ask("/pictures", body)]);
      return { text, state: its, estimate: own, pictures };
    }));
  }));
  showCompared(pins, {
    remove: (index) => { state.pins.splice(index, 1); remember(); showPins(); },
    open: (index) => { state = { ...read(state.pins[index]), pins: state.pins }; remember(); refresh({ ofModel: true }); byId("answer").scrollIntoView(); },
  });
}

function pin() {
  const text = written({ ...state, layout: answered.layout, pins: [] }, true);
  if (!state.pins.includes(text)) state.pins = [...state.pins.slice(0, 1), text];
  remember();
  showPins().then(() => byId("compare").scrollIntoView({ block: "nearest" }));
}

const fileName = (ending) => `${estimate.model.name.replace(/[^\w.-]+/g, "_")}-${estimate.parallelism.world_size}gpus.${ending}`;

function dialog(title, text) {
  byId("dialog-title").textContent = title;
  byId("dialog-body").replaceChildren(h("pre", { tabindex: "0" }, text));
  byId("dialog-copy").textContent = "Copy";
  byId("dialog-copy").onclick = async () => { byId("dialog-copy").textContent = (await copied(text)) ? "Copied" : "Select it and copy"; };
  byId("dialog").showModal();
}

function connect() {
  for (const name of CONTROLS) {
    const control = byId(name), isText = control.tagName === "INPUT" && control.type !== "range";
    if (isText) {
      control.addEventListener("input", () => { typing = name; });
      control.addEventListener("blur", () => { typing = null; });
    }
    control.addEventListener(name === "network" ? "input" : "change", () => {
      typing = null;
      if (name === "model") {
        if (control.value === CONFIG) return;
        Object.assign(state, { config: null, attention: "" });
      }
      changed(name, isText ? control.value.trim() : control.value);
    });
  }
  byId("question").addEventListener("submit", (event) => event.preventDefault());
  byId("front").addEventListener("change", () => table.onlyFront(byId("front").checked));
  byId("reset").addEventListener("click", () => { state = fresh(); remember(); showPins(); refresh({ ofModel: true }); });
  byId("share").addEventListener("click", async () => {
    const url = `${location.origin}${location.pathname}#${written({ ...state, layout: state.layout ?? answered?.layout }, true)}`;
    if (await copied(url)) {
      byId("share").textContent = "Link copied";
      setTimeout(() => { byId("share").textContent = "Copy link"; }, 2000);
    } else dialog("A link to this answer", url);
  });
  byId("pin").addEventListener("click", pin);
  byId("download-json").addEventListener("click", () => download(fileName("json"), new Blob([JSON.stringify(estimate, null, 2)], { type: "application/json" })));
  byId("download-page").addEventListener("click", () => guarded(async () => download(fileName("html"), await ask("/page", answered.body, { as: "blob" }))));
  byId("download-trace").addEventListener("click", () => guarded(async () => download(fileName("trace.json"), await ask("/trace", answered.body, { as: "blob" }))));
  byId("sbatch").addEventListener("click", () => guarded(async () => dialog("As a Slurm job", await jobText(answered.body, estimate, tokensOf(state), Number(state.price)))));
  byId("launch").addEventListener("click", () => {
    const { title, text, lost } = estimate.framework_arguments;
    dialog(`Arguments of ${title}`, [text, ...(lost.length ? ["", `# not in them: ${lost.join("; ")}`] : [])].join("\n"));
  });
  byId("dialog-close").addEventListener("click", () => byId("dialog").close());
  acceptConfigs((found) => {
    Object.assign(state, { config: found.model, layout: null, attention: "", sequence: "" });
    model = found;
    remember();
    refresh();
  }, (text) => {
    byId("problem").textContent = text;
    byId("problem").hidden = false;
  });
  addEventListener("hashchange", () => { state = read(location.hash.slice(1)); showPins(); refresh({ ofModel: true }); });
}

const initialHardware = () => (catalogue.bundle.startsWith("hardware:") ? catalogue.bundle.slice("hardware:".length) : OWN);

async function start() {
  await busy(() => guarded(async () => {
    const [found, pages] = await Promise.all([ask("/catalogue"), ask("/pages")]);
    catalogue = found;
    DEFAULTS.hardware = initialHardware();
    state = read(location.hash.slice(1));
    if (pages.length > 1) byId("nav").replaceChildren(...pages.map(({ path, title }) => h("a", { href: path, "aria-current": path === location.pathname ? "page" : null }, title)));
    fillControls();
    showPins();
    await refresh({ ofModel: true });
  }));
}

// On a small screen answers come first: what is rarely changed is folded.
if (matchMedia("(max-width: 56rem)").matches) for (const fold of document.querySelectorAll(".fold")) fold.open = false;
connect();
start();
