"""The page's style sheet: light and dark, on paper too. Shapes and words say what colours say."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5a6675; --page: #fdfdfc; --card: #f3f4f2; --line: #dcdfdc;
  --idle: #eef0ee; --forward: #8ec6ee; --in-forward: #0b2f4a; --backward: #1f6aa5; --in-backward: #ffffff;
  --weight: #35a08a; --in-weight: #ffffff; --transfer: #d98200; --reduce: #cf5630; --optimizer: #8d5fa8;
  --gather: #c3a3d4; --bubble: #c9ced2; --ends-forward: #c2def2; --ends-backward: #5f93be; --tensor: #e0a43a;
  --sharded: #b4862a; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e6e8; --soft: #a0abb6; --page: #15191d; --card: #1e2429;
  --line: #363e45; --idle: #20262b; --forward: #8cc4ea; --in-forward: #08263d; --backward: #3579b3;
  --in-backward: #ffffff; --weight: #2f8f7c; --in-weight: #ffffff; --transfer: #f0a63c; --reduce: #e2714d;
  --optimizer: #a47bc0; --gather: #d3bbe0; --bubble: #525b63; --ends-forward: #c2def2; --ends-backward: #6fa3cd;
  --tensor: #e0a43a; --sharded: #b98f3c; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 84rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; }
p { margin: .25rem 0 .75rem; max-width: 60rem; }
.soft, caption { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tiles div { background: var(--card); border-radius: .5rem; padding: .75rem 1rem; }
.tiles dt { font-size: .85rem; color: var(--soft); }
.tiles dd { margin: 0; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
.tiles dd.note { font-size: .85rem; color: var(--soft); }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--backward); outline-offset: 2px; }
svg { display: block; width: 100%; min-width: 46rem; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .label { text-anchor: end; fill: var(--soft); }
svg .tick { text-anchor: middle; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .unit { fill: var(--soft); }
svg .cut { text-anchor: middle; font-size: 26px; fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .in-forward, svg .in-backward, svg .in-weight { text-anchor: middle; font-size: 10.5px; pointer-events: none; }
svg .in-forward { fill: var(--in-forward); }
svg .in-backward { fill: var(--in-backward); }
svg .in-weight { fill: var(--in-weight); }
svg .transfer-line { fill: none; stroke: var(--transfer); stroke-width: 1.1; }
svg .limit { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 5 3; }
svg .limit-label { text-anchor: middle; fill: var(--bad); }
svg .over, svg .total { paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
svg .over { fill: var(--bad); font-weight: 600; }
.idle { fill: var(--idle); background: var(--idle); }
.forward { fill: var(--forward); background: var(--forward); }
.backward { fill: var(--backward); background: var(--backward); }
.weight { fill: var(--weight); background: var(--weight); }
.transfer { fill: var(--transfer); background: var(--transfer); }
.reduce { fill: var(--reduce); background: var(--reduce); }
.optimizer { fill: var(--optimizer); background: var(--optimizer); }
.gather { fill: var(--gather); background: var(--gather); }
.bubble { fill: var(--bubble); background: var(--bubble); }
.ends-forward { fill: var(--ends-forward); background: var(--ends-forward); }
.ends-backward { fill: var(--ends-backward); background: var(--ends-backward); }
.tensor { fill: var(--tensor); background: var(--tensor); }
.sharded { fill: var(--sharded); background: var(--sharded); }
.weights { fill: var(--backward); background: var(--backward); }
.gradients { fill: var(--forward); background: var(--forward); }
.states { fill: var(--optimizer); background: var(--optimizer); }
.activations { fill: var(--weight); background: var(--weight); }
.logits { fill: var(--tensor); background: var(--tensor); }
.working { fill: var(--bubble); background: var(--bubble); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .5rem 0; padding: 0;
  font-size: .875rem; color: var(--soft); }
.key { display: inline-block; width: .9em; height: .9em; border-radius: .15em; vertical-align: -.08em; }
.key.transfer { height: .2em; vertical-align: .25em; }
.key.reduce { height: .4em; vertical-align: -.08em; }
.shares { display: grid; grid-template-columns: max-content max-content max-content minmax(6rem, 1fr); gap: .3rem 1rem;
  align-items: center; margin: .75rem 0; font-variant-numeric: tabular-nums; }
.shares > * { display: contents; }
.shares .number { text-align: right; }
.bar { display: block; height: .95rem; border-radius: .15rem; min-width: 1px; }
.strip { display: flex; height: 2.1rem; border-radius: .3rem; overflow: hidden; gap: 1px; }
.strip span { min-width: 1px; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .5rem; white-space: nowrap; }
th, td { padding: .3rem .65rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th.number, td.number { text-align: right; }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; }
tbody tr:hover { background: var(--card); }
details { margin: .75rem 0; }
summary { cursor: pointer; }
.warnings { border-left: .3rem solid var(--reduce); padding: .25rem 1rem; background: var(--card); }
.warnings { margin: 1.25rem 0; } .warnings h2 { font-size: 1rem; margin: .35rem 0; }
.warnings ul { margin: .25rem 0; padding-left: 1.25rem; font-size: .9rem; }
.warnings li { overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: .75rem; font-size: .875rem; }
@media (max-width: 40rem) { .shares { grid-template-columns: 1fr max-content max-content; }
  .shares .track { display: none; }
  .facts { grid-template-columns: 1fr; } .facts dd { margin-bottom: .4rem; } }
@media print { body { max-width: none; padding: 0; } svg { min-width: 0; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  section, .tiles, tr { break-inside: avoid; } .scroll { overflow: visible; } }
"""
