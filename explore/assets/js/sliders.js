// Degrees as sliders over the values that divide the GPUs; stops say whether a layout is valid and fits.

import { h, options } from "./dom.js";
import { SCHEDULES } from "./format.js";

const TITLES = { tp: "Tensor, tp", pp: "Pipeline, pp", dp: "Data, dp", cp: "Context, cp", ep: "Expert, ep", expert_tp: "Expert tp", micro_batch: "Micro-batch" };
const WITHOUT_PIPELINE = ["1f1b", "gpipe"];
const CHUNKS = { interleaved: 2, zb_v: 2, dualpipe_v: 2 };
const ZEROS = [["0", "0, nothing"], ["1", "1, optimizer"], ["2", "2, gradients"], ["3", "3, parameters"]];

export class Sliders {
  #place; #note; #change; #made = {}; #choices = {}; #layout = null; #switches = {};

  /** `change(layout)` is called with the layout that the user wants. */
  constructor(place, note, change) {
    this.#place = place;
    this.#note = note;
    this.#change = change;
  }

  /** What each field can be: as the server's /choices says, for the layout that is shown. */
  show(choices, layout) {
    this.#layout = layout;
    const same = Object.keys(choices).join() === Object.keys(this.#choices).join();
    this.#choices = choices;
    if (!same || !this.#place.childElementCount) this.#build();
    for (const field of Object.keys(choices)) this.#update(field);
    this.#updateSwitches();
  }

  /** The values at once, before the server has said what else is valid. */
  move(layout) {
    this.#layout = layout;
    for (const field of Object.keys(this.#choices)) this.#made[field].output.textContent = String(layout[field]);
  }

  #build() {
    this.#made = {};
    const rows = Object.keys(this.#choices).map((field) => {
      const input = h("input", { type: "range", id: `slider-${field}`, min: "0", step: "1", oninput: () => this.#input(field) });
      const output = h("output", { for: `slider-${field}` });
      const stops = h("div", { class: "stops", "aria-hidden": "true" });
      this.#made[field] = { input, output, stops };
      return h("div", { class: "slider" }, h("label", { for: `slider-${field}` }, TITLES[field]), input, output, stops);
    });
    const pick = (id, text) => (this.#switches[id] = h("select", { id: `switch-${id}`, onchange: () => this.#switch(id) }), h("label", {}, text, this.#switches[id]));
    this.#switches.sequence_parallel = h("input", { type: "checkbox", id: "switch-sequence_parallel", onchange: () => this.#switch("sequence_parallel") });
    this.#place.replaceChildren(...rows, h("div", { class: "switches" }, pick("schedule", "Schedule"), pick("virtual_stages", "Chunks per GPU"),
      pick("recompute", "Recomputation"), pick("zero", "ZeRO"), h("label", { class: "check" }, this.#switches.sequence_parallel, " Sequence parallel")));
  }

  #update(field) {
    const { input, output, stops } = this.#made[field], several = this.#choices[field];
    const at = several.findIndex((one) => one.value === this.#layout[field]);
    input.max = String(Math.max(0, several.length - 1));
    input.disabled = several.length < 2;
    // A thumb that is being dragged stays where it is dragged to.
    if (document.activeElement !== input || !input.matches(":active")) input.value = String(Math.max(0, at));
    output.textContent = String(this.#layout[field]);
    input.setAttribute("aria-valuetext", words(several[at], several));
    stops.replaceChildren(...several.map((one) => h("span", { class: kind(one), title: words(one, several) })));
  }

  #updateSwitches() {
    const one = this.#layout, isPipeline = one.pp > 1;
    options(this.#switches.schedule, Object.entries(SCHEDULES).filter(([name]) => isPipeline || WITHOUT_PIPELINE.includes(name)), one.schedule);
    const chunks = one.schedule === "interleaved" ? [...new Set([2, 3, 4, 5, 6, 7, 8, one.virtual_stages])].sort((a, b) => a - b) : [one.virtual_stages];
    options(this.#switches.virtual_stages, chunks.map((n) => [String(n), String(n)]), String(one.virtual_stages));
    this.#switches.virtual_stages.disabled = chunks.length < 2;
    options(this.#switches.recompute, [["none", "none"], ["selective", "selective"], ["full", "full"]], one.recompute);
    options(this.#switches.zero, ZEROS, String(one.zero));
    this.#switches.sequence_parallel.checked = one.sequence_parallel;
    this.#switches.sequence_parallel.disabled = one.tp === 1 || Boolean(this.#choices.ep);
  }

  #input(field) {
    const { input } = this.#made[field], several = this.#choices[field];
    const now = several.findIndex((one) => one.value === this.#layout[field]), wanted = Number(input.value);
    if (several[wanted].layout) {
      this.#note.textContent = "";
      if (wanted !== now) this.#go(field, wanted);
      return;
    }
    // Not valid: the next valid stop on the way, so that arrow keys get past it; else it stays.
    const step = wanted > now ? 1 : -1;
    let at = wanted;
    while (several[at] && !several[at].layout) at += step;
    this.#note.textContent = `${TITLES[field]} ${several[wanted].value}: ${several[wanted].problem}`;
    if (several[at]) this.#go(field, at);
    input.value = String(several[at] ? at : now);
  }

  #go(field, at) {
    const one = this.#choices[field][at];
    if (one.fits === false) this.#note.textContent = `${TITLES[field]} ${one.value}: needs ${(one.memory_bytes / 2 ** 30).toFixed(1)} GiB on the fullest GPU, more than it has`;
    const layout = { ...this.#layout, ...one.layout };
    this.move(layout);
    this.#change(layout);
  }

  #switch(id) {
    const control = this.#switches[id];
    const value = id === "sequence_parallel" ? control.checked : ["virtual_stages", "zero"].includes(id) ? Number(control.value) : control.value;
    const layout = { ...this.#layout, [id]: value };
    if (id === "schedule") layout.virtual_stages = CHUNKS[value] ?? 1;
    this.#note.textContent = "";
    this.#change(layout);
  }
}

const kind = (one) => (!one.layout ? "none" : one.fits === false ? "full" : "fits");

function words(one, several) {
  if (!one) return "";
  const state = !one.layout ? `not valid: ${one.problem}` : one.fits === false ? "does not fit into memory" : "valid";
  return `${one.value} of ${several.map((other) => other.value).join(", ")}; ${state}`;
}
