"""Style sheet of the page, and its few lines of script."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f6f5f2; --card: #ffffff; --ink: #1c1d21; --soft: #62646c; --faint: #8b8d95;
  --edge: #e4e2dc; --grid: #eceae4; --bad: #c8322b; --good: #1a7f4e; --calm: #2563b8; --warn: #9a6200;
  --c0: #2a6fd0; --c1: #e08a1e; --c2: #14907c; --c3: #c4457a; --c4: #7a5bd0; --c5: #7a8a1f; --c6: #b0532c; --c7: #4b7f9f;
  --data: #e6a117; --forward: #2f73d9; --backward: #7c5cd6; --optimizer: #16a37b; --communication: #dc4a4a; --other: #a5a7ad;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #121317; --card: #1b1d22; --ink: #eceae6; --soft: #a4a6ae; --faint: #7d7f88;
    --edge: #2b2e35; --grid: #282b32; --bad: #ff7a70; --good: #56c98d; --calm: #7fb2ff; --warn: #e9b452;
    --c0: #6ea8ff; --c1: #f0a94e; --c2: #3fc4ae; --c3: #ee7fab; --c4: #a993f5; --c5: #b4c557; --c6: #e58a63; --c7: #86b9d6;
    --data: #e8b04a; --forward: #5e9bff; --backward: #a78bfa; --optimizer: #34c79b; --communication: #ee6a66; --other: #6d7079;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 64px; }
header { margin-bottom: 22px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 2px; letter-spacing: -0.005em; }
p { margin: 0; }
.facts { color: var(--soft); overflow-wrap: anywhere; }
.state { display: inline-block; border-radius: 999px; padding: 1px 11px; font-size: 13px; font-weight: 600;
  border: 1px solid currentColor; vertical-align: 4px; margin-left: 10px; letter-spacing: 0; }
.runs { color: var(--good); } .ended { color: var(--calm); } .failed, .gone { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 0 0 16px; padding: 0; }
.tiles div { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 12px 16px; }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { margin: 0; font-size: 23px; font-weight: 650; letter-spacing: -0.01em; line-height: 1.25; }
.tiles small { display: block; color: var(--faint); font-size: 12.5px; font-weight: 400; letter-spacing: 0; }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 18px 20px 16px; margin-bottom: 16px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 16px; margin-bottom: 16px; }
.pair section { margin-bottom: 0; min-width: 0; }
figure { margin: 0; } rect { shape-rendering: crispEdges; }
figcaption, .note { color: var(--soft); font-size: 13.5px; margin-bottom: 10px; }
.scale { color: var(--faint); } .scale::before { content: " \\00b7  "; }
.none { color: var(--faint); padding: 18px 0; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 0; margin: 0 0 10px; font-size: 13px; color: var(--soft); }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.chart { display: grid; grid-template-columns: auto 1fr; }
.up { position: relative; height: 210px; min-width: 58px; }
.up span { position: absolute; right: 10px; transform: translateY(50%); color: var(--faint); font-size: 12px; white-space: nowrap; }
.plot { position: relative; height: 210px; }
.plot svg { width: 100%; height: 100%; display: block; overflow: visible; }
.across { position: relative; grid-column: 2; height: 22px; }
.across span { position: absolute; top: 5px; transform: translateX(-50%); color: var(--faint); font-size: 12px; white-space: nowrap; }
.across span.first { transform: none; } .across span.last { transform: translateX(-100%); }
.unit { grid-column: 2; color: var(--faint); font-size: 12px; text-align: right; }
.line { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; stroke-linejoin: round; stroke-linecap: round; }
.grid { stroke: var(--grid); stroke-width: 1; vector-effect: non-scaling-stroke; }
.mark { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 4 4; vector-effect: non-scaling-stroke; }
.mark.checkpoint { stroke: var(--good); } .mark.notice, .mark.restart { stroke: var(--warn); }
.cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--faint); pointer-events: none; }
.tip { position: absolute; top: 4px; background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 6px 10px;
  font-size: 12.5px; pointer-events: none; white-space: nowrap; box-shadow: 0 4px 16px rgb(0 0 0 / 0.14); z-index: 2; }
.tip b { font-weight: 650; } .tip div { color: var(--soft); }
.row { display: grid; grid-template-columns: minmax(56px, auto) 1fr minmax(64px, auto); gap: 10px; align-items: center; padding: 3px 0; }
.row .name { color: var(--soft); font-size: 13px; } .row .sum { font-size: 13px; text-align: right; }
.bar { display: flex; height: 22px; gap: 2px; } .bar span { border-radius: 3px; min-width: 1px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: right; color: var(--soft); font-weight: 500; padding: 6px 0 6px 16px; border-bottom: 1px solid var(--edge); white-space: nowrap; }
td { text-align: right; padding: 6px 0 6px 16px; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } tr:last-child td { border-bottom: 0; }
.meter { display: inline-block; width: 56px; height: 8px; border-radius: 4px; background: var(--grid); margin-right: 8px; vertical-align: 1px; overflow: hidden; text-align: left; }
.meter span { display: block; height: 100%; border-radius: 4px; }
.events { list-style: none; margin: 0; padding: 0; }
.events li { display: grid; grid-template-columns: 84px 92px 1fr; gap: 10px; padding: 7px 0; border-bottom: 1px solid var(--grid); font-size: 13.5px; }
.events li:last-child { border-bottom: 0; }
.events time { color: var(--faint); } .events p { overflow-wrap: anywhere; white-space: pre-line; min-width: 0; }
.kind { font-weight: 600; color: var(--calm); } .kind.death { color: var(--bad); } .kind.notice, .kind.restart { color: var(--warn); }
.kind.checkpoint { color: var(--good); }
footer { color: var(--faint); font-size: 13px; padding: 4px 2px; }
span.key.c0, .bar .c0, .meter .c0 { background: var(--c0); } .line.c0 { stroke: var(--c0); } rect.c0 { fill: var(--c0); }
span.key.c1, .bar .c1, .meter .c1 { background: var(--c1); } .line.c1 { stroke: var(--c1); } rect.c1 { fill: var(--c1); }
span.key.c2, .bar .c2, .meter .c2 { background: var(--c2); } .line.c2 { stroke: var(--c2); } rect.c2 { fill: var(--c2); }
span.key.c3, .bar .c3, .meter .c3 { background: var(--c3); } .line.c3 { stroke: var(--c3); } rect.c3 { fill: var(--c3); }
span.key.c4, .bar .c4, .meter .c4 { background: var(--c4); } .line.c4 { stroke: var(--c4); } rect.c4 { fill: var(--c4); }
span.key.c5, .bar .c5, .meter .c5 { background: var(--c5); } .line.c5 { stroke: var(--c5); } rect.c5 { fill: var(--c5); }
span.key.c6, .bar .c6, .meter .c6 { background: var(--c6); } .line.c6 { stroke: var(--c6); } rect.c6 { fill: var(--c6); }
span.key.c7, .bar .c7, .meter .c7 { background: var(--c7); } .line.c7 { stroke: var(--c7); } rect.c7 { fill: var(--c7); }
span.p-data { background: var(--data); } rect.p-data { fill: var(--data); }
span.p-forward { background: var(--forward); } rect.p-forward { fill: var(--forward); }
span.p-backward { background: var(--backward); } rect.p-backward { fill: var(--backward); }
span.p-optimizer { background: var(--optimizer); } rect.p-optimizer { fill: var(--optimizer); }
span.p-communication { background: var(--communication); } rect.p-communication { fill: var(--communication); }
span.p-other { background: var(--other); } rect.p-other { fill: var(--other); }
@media (max-width: 560px) {
  main { padding: 18px 12px 48px; } section { padding: 14px 14px 12px; } h1 { font-size: 22px; }
  .tiles { grid-template-columns: repeat(2, 1fr); gap: 8px; } .tiles dd { font-size: 19px; } .tiles div { padding: 10px 12px; }
  .up { min-width: 48px; } .up, .plot { height: 180px; }
  .across span:nth-child(even) { display: none; }
  .events li { grid-template-columns: 76px 1fr; } .events p { grid-column: 1 / -1; }
}
@media print { body { background: #fff; } section, .tiles div { break-inside: avoid; } }
"""

SCRIPT = """
for (const plot of document.querySelectorAll(".plot")) {
  const data = JSON.parse(plot.querySelector("script").textContent);
  const cursor = plot.querySelector(".cursor"), tip = plot.querySelector(".tip");
  const hide = () => { cursor.hidden = tip.hidden = true; };
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) { const mid = (low + high) >> 1; if (points[mid][0] < x) low = mid; else high = mid; }
    return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
  };
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const x = 1000 * (event.clientX - box.left) / box.width;
    const found = data.lines.map((line) => [line, nearest(line.points, x)]);
    const at = found[0][1];
    cursor.hidden = tip.hidden = false;
    cursor.style.left = at[0] / 10 + "%";
    tip.replaceChildren();
    const head = document.createElement("b");
    head.textContent = data.x + " " + at[1];
    tip.append(head);
    for (const [line, point] of found) {
      const row = document.createElement("div"), key = document.createElement("span");
      key.className = "key " + line.colour;
      row.append(key, line.name + "  " + point[2]);
      tip.append(row);
    }
    const right = at[0] > 500;
    tip.style.left = right ? "auto" : "calc(" + at[0] / 10 + "% + 10px)";
    tip.style.right = right ? "calc(" + (100 - at[0] / 10) + "% + 10px)" : "auto";
  });
}
"""
