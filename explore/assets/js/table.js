// Ten thousand rows as a table: only those in sight are elements. Arrow keys walk, Enter chooses.

import { h } from "./dom.js";
import { gib, percent, rate, schedule, seconds } from "./format.js";

const ROW_PX = 29.6;
const SPARE = 8;
const COLUMNS = [
  ["", "rank", (one) => h("td", {}, String(one.rank + 1))],
  ["Step", "step_s", (one) => h("td", {}, one.isFront ? h("span", { class: "on-front", title: "on the Pareto front" }, "◆ ") : null, seconds(one.step_s))],
  ["Memory", "memory_bytes", (one) => h("td", {}, gib(one.memory_bytes))],
  ["MFU", "mfu", (one) => h("td", {}, percent(one.mfu))],
  ...["tp", "pp", "dp", "cp", "ep"].map((name) => [name, name, (one) => h("td", {}, String(one.layout[name]))]),
  ["Micro-batch", "micro_batch", (one) => h("td", {}, `${one.layout.micro_batch} × ${one.layout.micro_batches}`)],
  ["Schedule", "schedule", (one) => h("td", { class: "text" }, schedule(one.layout))],
  ["Recompute", "recompute", (one) => h("td", { class: "text" }, one.layout.recompute)],
  ["ZeRO", "zero", (one) => h("td", {}, String(one.layout.zero))],
  ["Tokens/s/GPU", "rate", (one) => h("td", {}, rate(one.rate))],
];
const TEXTS = ["schedule", "recompute"];

export class LayoutTable {
  #place; #choose; #rows = []; #shown = []; #sort = { by: "rank", down: false }; #active = 0; #chosen = null; #onlyFront = false;
  #columns = COLUMNS; #scroller; #table; #heads = {};

  constructor(place, choose) {
    this.#place = place;
    this.#choose = choose;
  }

  /** Rows: {rank, step_s, memory_bytes, nccl_bytes, mfu, rate, isFront, layout}. */
  show(rows) {
    this.#rows = rows;
    this.#columns = COLUMNS.filter(([, by]) => !["cp", "ep"].includes(by) || rows.some((one) => one.layout[by] > 1));
    this.#build();
    this.#order();
  }

  onlyFront(value) {
    this.#onlyFront = value;
    this.#order();
  }

  /** Mark a row, and bring it into sight where it is another one than before. */
  chosen(rank) {
    const isOther = rank !== this.#chosen && rank !== null;
    this.#chosen = rank;
    this.#active = Math.max(0, this.#shown.findIndex((one) => one.rank === rank));
    if (isOther) this.#reveal();
    else this.#draw();
  }

  #build() {
    const head = h("tr", {}, this.#columns.map(([title, by]) => {
      const cell = h("th", { scope: "col", class: TEXTS.includes(by) ? "text" : null },
        h("button", { type: "button", onclick: () => this.#sortBy(by), "aria-label": title || "rank" }, title || "#"));
      this.#heads[by] = cell;
      return cell;
    }));
    this.#table = h("table", { role: "grid", "aria-label": "Best layouts", tabindex: "0", onkeydown: (event) => this.#key(event) },
      h("thead", {}, head), h("tbody"));
    this.#scroller = h("div", { class: "rows", onscroll: () => this.#draw() }, this.#table);
    this.#place.replaceChildren(this.#scroller);
  }

  #sortBy(by) {
    this.#sort = { by, down: this.#sort.by === by && !this.#sort.down };
    this.#order();
  }

  #order() {
    if (!this.#table) return;
    const { by, down } = this.#sort;
    const value = (one) => one[by] ?? one.layout[by];
    const sign = down ? -1 : 1;
    this.#shown = this.#rows.filter((one) => !this.#onlyFront || one.isFront);
    this.#shown.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return sign * (x < y ? -1 : x > y ? 1 : 0) || a.rank - b.rank;
    });
    for (const [name, cell] of Object.entries(this.#heads)) {
      if (name === by) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    this.#table.setAttribute("aria-rowcount", String(this.#shown.length + 1));
    this.#active = Math.max(0, this.#shown.findIndex((one) => one.rank === this.#chosen));
    this.#draw();
  }

  #key(event) {
    if (event.target !== this.#table) return;
    const last = this.#shown.length - 1;
    const page = Math.max(1, Math.floor(this.#scroller.clientHeight / ROW_PX) - 2);
    const to = { ArrowDown: this.#active + 1, ArrowUp: this.#active - 1, PageDown: this.#active + page, PageUp: this.#active - page,
      Home: 0, End: last }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.#active = Math.min(last, Math.max(0, to));
      this.#reveal();
    } else if ((event.key === "Enter" || event.key === " ") && this.#shown.length) {
      event.preventDefault();
      this.#choose(this.#shown[this.#active]);
    }
  }

  #reveal() {
    const top = this.#active * ROW_PX, room = this.#scroller.clientHeight - 2 * ROW_PX;
    if (top < this.#scroller.scrollTop) this.#scroller.scrollTop = top;
    else if (top > this.#scroller.scrollTop + room) this.#scroller.scrollTop = top - room;
    this.#draw();
  }

  #draw() {
    if (!this.#table) return;
    const first = Math.max(0, Math.floor(this.#scroller.scrollTop / ROW_PX) - SPARE);
    const count = Math.ceil((this.#scroller.clientHeight || 350) / ROW_PX) + 2 * SPARE;
    const rows = this.#shown.slice(first, first + count);
    const space = (number) => h("tr", { class: "space", "aria-hidden": "true", style: { height: `${number * ROW_PX}px` } }, h("td", { colspan: this.#columns.length }));
    const body = rows.map((one, index) => {
      const place = first + index;
      return h("tr", { id: `row-${place}`, "aria-rowindex": place + 2, "aria-selected": String(one.rank === this.#chosen),
        onclick: () => { this.#active = place; this.#choose(one); } }, this.#columns.map(([, , cell]) => cell(one)));
    });
    this.#table.tBodies[0].replaceChildren(...(first ? [space(first)] : []), ...body,
      ...(first + rows.length < this.#shown.length ? [space(this.#shown.length - first - rows.length)] : []));
    if (rows.length) this.#table.setAttribute("aria-activedescendant", `row-${this.#active}`);
    const active = document.getElementById(`row-${this.#active}`);
    active?.classList.toggle("active", document.activeElement === this.#table);
  }
}
