// From the state to the bodies that the server takes.

import { counted } from "./format.js";

export const OWN = "";
export const FACTORS = { "-3": 1 / 8, "-2": 1 / 4, "-1": 1 / 2, 0: 1, 1: 2, 2: 4, 3: 8 };
const QUICK = { zero: [1], schedules: ["1f1b", "interleaved"], virtual_stages: [2, 4], micro_batch: "1-4", top: 200 };

export const OPTIMIZERS = {
  bfloat16: { title: "Adam, states in bfloat16", fields: { optimizer_states: "bfloat16" } },
  "8bit": { title: "Adam, states in 8 bit", fields: { optimizer_states: "8bit" } },
  lion: { title: "Lion", fields: { optimizer: "lion" } },
  sgd: { title: "SGD with momentum", fields: { optimizer: "sgd" } },
};

/** The description of the state's fabric, or null where it is measured, or that of a bundle. */
export function described(state, catalogue) {
  const hardware = catalogue.hardware.find((one) => one.name === state.hardware);
  const name = state.fabric || hardware?.fabric;
  return catalogue.fabrics.find((one) => one.name === name) ?? null;
}

function fabric(state, catalogue) {
  const factor = FACTORS[state.network] ?? 1;
  const known = described(state, catalogue);
  if (factor === 1 || !known?.between) return state.fabric ? { fabric: state.fabric } : {};
  const between = { ...known.between, gbit_per_s: known.between.gbit_per_s * factor };
  return { fabric: { ...known, name: `${known.name}, network × ${factor}`.slice(0, 80), between } };
}

/** A whole number in a field; the field's name is in the error. */
function whole(text, name) {
  if (!/^[0-9]{1,10}$/.test(text.trim()) || Number(text) < 1) throw new RangeError(`${name} is '${text}', expected a whole number from 1`);
  return Number(text);
}

/** Fields of every question. `model` are the fields of the state's model, which another attention kernel needs. */
function shared(state, catalogue, model) {
  const other = state.attention && state.attention !== model.attention;
  return {
    ...(state.hardware === OWN ? {} : { hardware: state.hardware }),
    model: other || state.config ? { ...model, ...(other ? { attention: state.attention } : {}) } : state.model,
    ...(state.sequence ? { sequence_length: whole(state.sequence, "sequence") } : {}),
    ...fabric(state, catalogue),
    ...(state.kernel ? { attention_kernel: state.kernel } : {}),
    ...(state.stack ? { stack: state.stack } : {}),
    ...(state.framework ? { framework: state.framework } : {}),
    ...(state.fp8 ? { fp8_recipe: state.fp8 } : {}),
    ...(state.lora ? { lora_rank: whole(state.lora, "LoRA rank") } : {}),
    ...(state.frozen ? { frozen_weights: state.frozen } : {}),
    ...(state.objective ? { objective: state.objective } : {}),
    ...OPTIMIZERS[state.optimizer]?.fields,
    global_batch: whole(state.batch, "global batch"),
  };
}

/** A search: first a quick one among usual layouts, then among all. */
export function searchBody(state, catalogue, model, { quick }) {
  const limits = {};
  if (state.recompute) limits.recompute = [state.recompute];
  if (state.schedule) limits.schedules = [state.schedule];
  if (state.zero) limits.zero = [Number(state.zero)];
  return {
    ...shared(state, catalogue, model),
    gpus: whole(state.gpus, "GPUs"),
    top: Number(state.top),
    ...(quick ? (state.framework ? { micro_batch: QUICK.micro_batch, top: QUICK.top } : QUICK) : {}),
    ...limits,
  };
}

/** A prediction of one layout. */
export function layoutBody(state, catalogue, model, layout) {
  const { micro_batches, ...fields } = layout;
  return { ...shared(state, catalogue, model), ...fields };
}

export const tokensOf = (state) => counted(state.tokens || "");
