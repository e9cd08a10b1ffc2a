"""The style sheet of all pages: light and dark, on screen and paper. Shapes and words repeat what colours tell.

`COLOURS` are the colours alone and what pictures are drawn with, for pages that have a style of their own.
"""

_COLOURED = (
    "idle forward backward weight transfer reduce optimizer gather bubble ends-forward ends-backward tensor expert "
    "context sharded weights gradients states activations logits working"
)

COLOURS = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5a6675; --page: #fdfdfc; --card: #f3f4f2; --line: #dcdfdc;
  --idle: #eef0ee; --forward: #8ec6ee; --in-forward: #0b2f4a; --backward: #1f6aa5; --in-backward: #ffffff;
  --weight: #35a08a; --in-weight: #ffffff; --transfer: #d98200; --reduce: #cf5630; --optimizer: #8d5fa8;
  --gather: #c3a3d4; --bubble: #c9ced2; --ends-forward: #c2def2; --ends-backward: #5f93be; --tensor: #e0a43a;
  --expert: #c2185b; --context: #6a3d9a;
  --sharded: #b4862a; --bad: #b3261e; --link: #00568a;
  --weights: var(--backward); --gradients: var(--forward); --states: var(--optimizer);
  --activations: var(--weight); --logits: var(--tensor); --working: var(--bubble); }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e6e8; --soft: #a0abb6; --page: #15191d; --card: #1e2429;
  --line: #363e45; --idle: #20262b; --forward: #8cc4ea; --in-forward: #08263d; --backward: #3579b3;
  --in-backward: #ffffff; --weight: #2f8f7c; --in-weight: #ffffff; --transfer: #f0a63c; --reduce: #e2714d;
  --optimizer: #a47bc0; --gather: #d3bbe0; --bubble: #525b63; --ends-forward: #c2def2; --ends-backward: #6fa3cd;
  --tensor: #e0a43a; --expert: #ec5f94; --context: #b28ae0; --sharded: #b98f3c;
  --bad: #ff8a80; --link: #7cc4f2; } }
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
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .5rem 0; padding: 0;
  font-size: .875rem; color: var(--soft); }
.key { display: inline-block; width: .9em; height: .9em; border-radius: .15em; vertical-align: -.08em; }
.key.transfer { height: .2em; vertical-align: .25em; }
.key.reduce { height: .4em; vertical-align: -.08em; }
""" + "".join(
    f".{name} {{ fill: var(--{name}); background: var(--{name}); }}\n" for name in _COLOURED.split()
)

STYLE = (
    COLOURS
    + """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 84rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 0; scroll-margin-top: 1rem; }
p { margin: .25rem 0 .75rem; max-width: 60rem; }
a { color: var(--link); }
.soft, caption, figcaption { color: var(--soft); }
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
nav { display: flex; gap: 1.25rem; margin-bottom: 1rem; }
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
.notes td:last-child { white-space: normal; min-width: 15rem; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " ↑"; }
th[aria-sort=descending] button::after { content: " ↓"; }
.operator { margin: 0 0 2.25rem; padding-top: 1rem; border-top: 1px solid var(--line); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(21rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; }
figcaption { font-size: .85rem; }
figure img { width: 100%; max-width: 30rem; }
figure.overview img { max-width: 46rem; }
.plots + .scroll { margin-top: 1rem; }
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
)
