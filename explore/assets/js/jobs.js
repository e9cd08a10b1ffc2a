// The sbatch line of an answer: its nodes and GPUs, a time limit from /walltime, and the line that a script would have.

import { ask } from "./api.js";
import { LAYOUT_FIELDS } from "./state.js";

const DEFAULTS = { pp: 1, tp: 1, dp: 1, cp: 1, ep: 1, expert_tp: 1, schedule: "1f1b", virtual_stages: 1, sequence_parallel: false, recompute: "none", zero: 1, layer_split: "even" };
const USUAL_STEPS = 1000;

/** Lines of text for a job that trains as `body` says, on `tokens` (null: on 1,000 steps). */
export async function jobText(body, estimate, tokens, price) {
  const length = tokens ? { tokens } : { steps: USUAL_STEPS };
  const found = await ask("/walltime", { ...body, ...length, ...(price > 0 ? { price } : {}) });
  const perNode = Math.min(estimate.cluster.gpus_per_node, found.gpus), nodes = Math.ceil(found.gpus / perNode);
  const limit = found.slurm === null ? "" : ` --time=${found.slurm}`;
  const command = `sbatch --nodes=${nodes} --gpus-per-node=${perNode} --ntasks-per-node=${perNode}${limit} train.sbatch`;
  const layout = LAYOUT_FIELDS.filter((name) => name !== "micro_batches" && body[name] !== undefined && body[name] !== DEFAULTS[name]).map((name) => `${name}=${body[name]}`);
  const model = typeof body.model === "string" ? body.model : `${estimate.model.name}`;
  const more = [
    body.hardware ? `hardware=${body.hardware}` : null, `model=${model}`, `global_batch=${body.global_batch}`,
    typeof body.fabric === "string" ? `fabric=${body.fabric}` : null, body.stack ? `stack=${body.stack}` : null, body.sequence_length ? `sequence_length=${body.sequence_length}` : null,
    tokens ? `tokens=${tokens}` : `steps=${USUAL_STEPS}`,
  ].filter(Boolean);
  const notes = found.warnings.map((line) => `# ${line}`);
  if (found.jobs > 1) notes.unshift(`# ${found.jobs} jobs in a row, from checkpoint to checkpoint`);
  if (found.slurm === null) notes.unshift("# longer than Slurm's longest time limit: give max_time, and jobs follow each other");
  return [command, "", "# in train.sbatch, for kernelcast walltime and the Slurm plugins:", `#KERNELCAST ${more.join(" ")}`, `#KERNELCAST ${layout.join(" ")}`, ...notes].join("\n");
}
