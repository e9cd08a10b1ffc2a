// Time against memory of every layout, by uPlot on a canvas: ten thousand points are drawn in milliseconds.

import { h } from "./dom.js";
import { degrees, gib, schedule, seconds } from "./format.js";

const NEAR_PX = 18;
// NCCL allocates next to torch, and how much differs by layout: both have to stay below the line.
const needed = (one) => (one.memory_bytes + one.nccl_bytes) / 2 ** 30;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Pareto {
  #place; #choose; #plot = null; #rows = []; #limit = null; #chosen = null; #tip; #legend = null; #at = -1;

  constructor(place, choose) {
    this.#place = place;
    this.#choose = choose;
    this.#tip = h("div", { class: "tip", hidden: true });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#make());
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(place);
  }

  /** Rows in the table's form, best first; `limit` is the memory of a device in bytes, or null. */
  show(rows, limit) {
    this.#rows = rows;
    this.#limit = limit;
    this.#at = -1;
    this.#make();
  }

  /** The answer that is shown: {step_s, memory_bytes, nccl_bytes}, also of a layout that is not among the rows. */
  chosen(one) {
    this.#chosen = one;
    this.#plot?.redraw(false, false);
  }

  #size() {
    return { width: Math.max(240, this.#place.clientWidth), height: Math.max(180, this.#place.clientHeight - (this.#legend?.offsetHeight ?? 24) - 6) };
  }

  #make() {
    this.#plot?.destroy();
    this.#plot = null;
    if (!this.#rows.length) return this.#place.replaceChildren(this.#tip);
    const rows = this.#rows, front = rows.filter((one) => one.isFront);
    const points = (some) => [some.map((one) => one.step_s), some.map(needed)];
    const times = rows.map((one) => one.step_s), sizes = rows.map(needed);
    const low = Math.min(...times), high = Math.max(...times);
    const isLog = high / low > 6;
    const limit = this.#limit === null ? null : this.#limit / 2 ** 30;
    const scale = high < 1 ? [1e3, "ms"] : [1, "s"];
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui",
      labelFont: "12px system-ui", labelSize: 18 };
    const values = (plot, splits) => splits.map((one) => (one === null ? "" : `${+(one * scale[0]).toPrecision(3)}`));
    const few = (plot, splits) => splits.map((one) => (!isLog || /^[125]/.test(one.toExponential()) || high / low < 20 ? one : null));
    const x = { ...axis, label: `step in ${scale[1]}`, size: 26, labelGap: -2, values, filter: few, space: 44 };
    const options = {
      mode: 2, legend: { show: false }, cursor: { show: false }, padding: [10, 14, 0, 0],
      scales: {
        x: { time: false, distr: isLog ? 3 : 1, log: 10, range: isLog ? [low * 0.96, high * 1.05] : [low - (high - low) * 0.04, high + (high - low) * 0.04 + low * 1e-3] },
        y: { range: [0, Math.max(...sizes, limit ?? 0) * 1.06] },
      },
      axes: [x, { ...axis, label: "fullest GPU with NCCL's buffers, GiB", size: 42 }],
      series: [{}, { paths: dots(colour("--cloud"), 4) }, { paths: dots(colour("--front"), 7, true) }],
      hooks: { draw: [(plot) => this.#over(plot, limit)] },
    };
    const target = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": summary(rows, front) });
    this.#legend = h("ul", { class: "legend" },
      h("li", {}, h("span", { class: "dot cloud" }), ` ${rows.length.toLocaleString("en-US")} layouts`),
      h("li", {}, h("span", { class: "dot front" }), " Pareto front"), h("li", {}, h("span", { class: "dot chosen" }), " shown below"),
      limit === null ? null : h("li", {}, h("span", { class: "rule" }), " memory of a GPU"));
    this.#place.replaceChildren(target, this.#legend, this.#tip);
    this.#plot = new window.uPlot({ ...options, ...this.#size() }, [null, points(rows), points(front)], target);
    target.addEventListener("pointermove", (event) => this.#hover(this.#near(event)));
    target.addEventListener("pointerleave", () => this.#hover(null));
    target.addEventListener("click", (event) => { const one = this.#near(event); if (one) this.#choose(one); });
    target.addEventListener("keydown", (event) => this.#key(event, front));
    target.addEventListener("blur", () => this.#hover(null));
  }

  #key(event, front) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      this.#at = Math.min(front.length - 1, Math.max(0, this.#at + step));
      this.#hover(front[this.#at]);
    } else if ((event.key === "Enter" || event.key === " ") && this.#at >= 0) {
      event.preventDefault();
      this.#choose(front[this.#at]);
    }
  }

  #where(one) {
    const plot = this.#plot;
    return [plot.valToPos(one.step_s, "x"), plot.valToPos(needed(one), "y")];
  }

  #near(event) {
    const box = this.#plot.over.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = null, least = NEAR_PX ** 2;
    for (const one of this.#rows) {
      const [px, py] = this.#where(one);
      // Points of the front are larger, and drawn above the others.
      const distance = ((px - x) ** 2 + (py - y) ** 2) * (one.isFront ? 0.5 : 1);
      if (distance < least) [best, least] = [one, distance];
    }
    return best;
  }

  #hover(one) {
    this.#tip.hidden = !one;
    if (!one) return;
    this.#tip.replaceChildren(h("b", {}, `${seconds(one.step_s)}, ${gib(one.memory_bytes)}`), degrees(one.layout), h("br"),
      `${schedule(one.layout)}, micro-batch ${one.layout.micro_batch}, recompute ${one.layout.recompute}, ZeRO ${one.layout.zero}`);
    const [x, y] = this.#where(one), over = this.#plot.over;
    const left = over.offsetLeft + x, wide = this.#tip.offsetWidth;
    this.#tip.style.left = `${left + wide + 14 > this.#place.clientWidth ? Math.max(0, left - wide - 10) : left + 12}px`;
    this.#tip.style.top = `${Math.max(0, Math.min(over.offsetTop + y - 20, this.#place.clientHeight - this.#tip.offsetHeight))}px`;
  }

  #over(plot, limit) {
    const { ctx, bbox } = plot;
    ctx.save();
    if (limit !== null) {
      const y = plot.valToPos(limit, "y", true);
      ctx.strokeStyle = colour("--bad");
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    const one = this.#chosen;
    if (one) {
      const inside = (value, low, high) => Math.min(high, Math.max(low, value));
      const x = inside(plot.valToPos(one.step_s, "x", true), bbox.left, bbox.left + bbox.width);
      const y = inside(plot.valToPos(needed(one), "y", true), bbox.top, bbox.top + bbox.height);
      ctx.setLineDash([]);
      ctx.strokeStyle = colour("--ink");
      ctx.lineWidth = 2.5 * devicePixelRatio;
      ctx.beginPath();
      ctx.arc(x, y, 7 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.stroke();
    }
    ctx.restore();
  }
}

function summary(rows, front) {
  const ends = [front[0], front[front.length - 1]].filter(Boolean).map((one) => `${seconds(one.step_s)} with ${gib(one.memory_bytes)}`);
  return `${rows.length} layouts by time and memory; the Pareto front goes from ${ends.join(" to ")}. Arrow keys walk along it, Enter chooses. The same figures are in the table.`;
}

/** uPlot's drawing of a series of points, with a line through them on request. */
function dots(fill, size, isLine = false) {
  return (plot, seriesIndex) => {
    const { ctx } = plot;
    const [xs, ys] = plot.data[seriesIndex];
    const radius = (size / 2) * devicePixelRatio, path = new Path2D(), line = new Path2D();
    for (let index = 0; index < xs.length; index += 1) {
      const x = plot.valToPos(xs[index], "x", true), y = plot.valToPos(ys[index], "y", true);
      path.moveTo(x + radius, y);
      path.arc(x, y, radius, 0, 2 * Math.PI);
      if (isLine) {
        // A front is a staircase: between two of its layouts there is none.
        if (index) line.lineTo(x, plot.valToPos(ys[index - 1], "y", true));
        else line.moveTo(x, y);
        line.lineTo(x, y);
      }
    }
    ctx.save();
    ctx.fillStyle = fill;
    ctx.strokeStyle = fill;
    ctx.lineWidth = 1.5 * devicePixelRatio;
    if (isLine) ctx.stroke(line);
    if (!isLine) ctx.globalAlpha = xs.length > 2000 ? 0.35 : 0.55;
    ctx.fill(path);
    ctx.restore();
    return null;
  };
}
