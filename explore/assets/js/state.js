// The question as one plain object, and as the fragment of the address, by which it is shared.

export const LAYOUT_FIELDS = ["pp", "tp", "dp", "cp", "ep", "expert_tp", "micro_batch", "micro_batches", "schedule", "virtual_stages",
  "sequence_parallel", "recompute", "zero", "layer_split"];

/** What an address need not say; the hardware is the one that the server begins with. */
export const DEFAULTS = {
  hardware: "h100-sxm", fabric: "", gpus: "64", model: "llama-3.1-70b", batch: "512", sequence: "", recompute: "", schedule: "",
  zero: "", top: "1000", network: "0", attention: "", kernel: "", stack: "", framework: "", fp8: "", lora: "", frozen: "", objective: "", optimizer: "", price: "", tokens: "1T",
};

/** `config`: fields of a model that was opened, or null; `layout`: the chosen one, or null for the best; `pins`: of compared answers. */
export const fresh = () => ({ ...DEFAULTS, config: null, layout: null, pins: [] });

/** `isWhole`: with the hardware, whatever a server begins with. */
export function written(state, isWhole = false) {
  const found = new URLSearchParams();
  for (const name of Object.keys(DEFAULTS)) {
    if (state[name] !== DEFAULTS[name] || (isWhole && name === "hardware")) found.set(name, state[name]);
  }
  if (state.config) found.set("config", JSON.stringify(state.config));
  if (state.layout) found.set("layout", LAYOUT_FIELDS.map((name) => state.layout[name]).join("."));
  for (const pin of state.pins) found.append("pin", pin);
  return found.toString();
}

/** What an address says; what it does not say, or says wrongly, is as at the start. */
export function read(text) {
  const state = fresh();
  const found = new URLSearchParams(text);
  for (const name of Object.keys(DEFAULTS)) if (found.has(name)) state[name] = found.get(name);
  try {
    const config = JSON.parse(found.get("config"));
    if (config && typeof config === "object") state.config = config;
  } catch { /* no model: the named one counts */ }
  state.layout = readLayout(found.get("layout"));
  state.pins = found.getAll("pin").filter((pin) => readLayout(new URLSearchParams(pin).get("layout"))).slice(0, 2);
  return state;
}

function readLayout(text) {
  const parts = text?.split(".") ?? [];
  if (parts.length !== LAYOUT_FIELDS.length) return null;
  return Object.fromEntries(LAYOUT_FIELDS.map((name, index) => {
    const part = parts[index];
    return [name, part === "true" || part === "false" ? part === "true" : /^[0-9]+$/.test(part) ? Number(part) : part];
  }));
}
