// Numbers as people read them; the same units as kernelcast's pages and tables.

const number = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

function significant(value, digits = 4) {
  if (!(value > 0)) return "0";
  return number(value, Math.min(3, Math.max(0, digits - 1 - Math.floor(Math.log10(value)))));
}

/** `1.234 s`, `12.34 ms`; from two minutes on minutes, hours, days. */
export function seconds(value) {
  if (value >= 172_800) return `${significant(value / 86_400, 3)} days`;
  if (value >= 7_200) return `${significant(value / 3_600, 3)} h`;
  if (value >= 120) return `${significant(value / 60)} min`;
  if (value >= 1) return `${significant(value)} s`;
  return value >= 1e-3 ? `${significant(value * 1e3)} ms` : `${significant(value * 1e6)} µs`;
}

export const gib = (bytes) => `${number(bytes / 2 ** 30, 1)} GiB`;
export const percent = (share, digits = 1) => (share === null || share === undefined ? "–" : `${number(share * 100, digits)} %`);
export const signed = (share) => `${share >= 0 ? "+" : "−"}${number(Math.abs(share) * 100, 1)} %`;
export const whole = (value) => Math.round(value).toLocaleString("en-US");
export const rate = (value) => (value >= 100 ? whole(value) : value.toPrecision(3));

/** `8.0 B`, `671 B`, `1.5 T`. */
export function amount(value) {
  for (const [scale, unit] of [[1e15, "P"], [1e12, "T"], [1e9, "B"], [1e6, "M"]]) {
    if (value >= scale) return `${+(value / scale).toPrecision(3)} ${unit}`;
  }
  return whole(value);
}

/** The number in `15T`, `300B`, `1e12`; null where it is none. */
export function counted(text) {
  const found = /^([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)\s*([kMBGT]?)$/.exec(text.trim());
  if (!found) return null;
  return Math.round(Number(found[1]) * { "": 1, k: 1e3, M: 1e6, B: 1e9, G: 1e9, T: 1e12 }[found[2]]);
}

export const SCHEDULES = {
  "1f1b": "1F1B", interleaved: "interleaved", zero_bubble: "zero-bubble", zb_v: "ZB-V", dualpipe: "DualPipe", dualpipe_v: "DualPipeV", gpipe: "GPipe",
};
export const schedule = (one) =>
  one.virtual_stages > 1 ? `${SCHEDULES[one.schedule]} × ${one.virtual_stages}` : SCHEDULES[one.schedule];

/** `tp 2 × pp 4 × dp 8`, further degrees where they are not 1. */
export function degrees(one) {
  const always = ["tp", "pp", "dp"];
  const listed = ["tp", "pp", "dp", "cp"].filter((name) => always.includes(name) || one[name] > 1).map((name) => `${name} ${one[name]}`);
  const experts = ["ep", "expert_tp"].filter((name) => one[name] > 1).map((name) => `, ${name} ${one[name]}`);
  return listed.join(" × ") + experts.join("");
}

/** A layout in a line. */
export function layoutText(one) {
  const parts = [degrees(one), `micro-batch ${one.micro_batch} × ${one.micro_batches}`, schedule(one), `recompute ${one.recompute}`, `ZeRO ${one.zero}`];
  return [...parts, ...(one.sequence_parallel ? ["sequence parallel"] : [])].join(", ");
}
