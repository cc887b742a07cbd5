// Charts. Lines are in an SVG that is stretched to its box, words are HTML beside it and keep their size.
// Each plot is a slider for the keyboard and for screen readers, and has its numbers as a table.

const SIZE = 1000, TICKS = 4;

function niceTicks(low, high, unit = 1) {
  if (!(high > low)) return [low];
  const rough = (high - low) / TICKS / unit, power = 10 ** Math.floor(Math.log10(rough));
  const step = unit * power * [1, 2, 5, 10].find((each) => power * each >= rough * 0.7), ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at <= high / step + 1e-9; at++) ticks.push(+(at * step).toPrecision(12));
  return ticks;
}

// A function from values to 0..1, with `ticks`. Values over many orders of magnitude are on a logarithmic scale.
function scaled(low, high, { logarithmic = false, unit = 1 } = {}) {
  const [from, to] = logarithmic ? [Math.log10(low), Math.log10(high)] : [low, high];
  const scale = (value) => (to > from ? ((logarithmic ? Math.log10(Math.max(value, low)) : value) - from) / (to - from) : 0.5);
  scale.logarithmic = logarithmic;
  scale.ticks = niceTicks(low, high, unit);
  if (logarithmic) {
    const powers = [];
    for (let power = Math.ceil(from - 1e-9); power <= to + 1e-9; power++) powers.push(10 ** power);
    scale.ticks = powers.length > 1 ? powers.filter((_, place) => place % Math.ceil(powers.length / TICKS) === 0) : [low, high];
  }
  return scale;
}

function upward(values, { zero, binary }) {
  let low = Math.min(...values), high = Math.max(...values);
  if (!zero && low > 0 && high / low > 100) return scaled(low, high, { logarithmic: true });
  if (zero) low = Math.min(0, low);
  if (high === low) high = low + (Math.abs(low) || 1);
  const unit = binary ? 1024 ** Math.max(0, Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024))) : 1;
  return scaled(low, high + (high - low) * 0.06, { unit });
}

const path = (points) => (points.length ? "M" + points.map(([x, y]) => x.toFixed(1) + " " + y.toFixed(1)).join("L") : "");

// Lines over one another: [{name, colour, x, y, low, high}].
function lines(title, all, { caption, across, up, xName, zero = true, binary = false, marks = [], live = false }) {
  all = all.filter((line) => line.y.some((value) => value !== null));
  if (!all.length) return nothing(title, caption);
  const longest = all.reduce((most, line) => (line.x.length > most.x.length ? line : most));
  const spread = (name) => all.flatMap((line) => (line[name] ?? line.y).filter((value) => value !== null));
  const xs = all.flatMap((line) => [line.x[0], line.x.at(-1)]);
  const x = scaled(Math.min(...xs), Math.max(...xs));
  const y = upward([...spread("low"), ...spread("high")], { zero, binary });
  const place = (line, values) =>
    line.x.map((at, index) => [SIZE * x(at), SIZE * (1 - Math.min(1, Math.max(0, y(values[index]))))])
      .filter((_, index) => values[index] !== null);
  const drawn = all.map((line) => [
    line.low && s("path", { class: "band " + line.colour, d: path([...place(line, line.high), ...place(line, line.low).reverse()]) + "Z" }),
    s("path", { class: "line " + line.colour, d: line.x.length > 1 ? path(place(line, line.y)) : "" }),
  ]);
  const dots = all.map((line) => {
    const [left, top] = place(line, line.y).at(-1);
    return h("span", { class: "dot " + line.colour + (live ? " live" : ""), style: { left: left / 10 + "%", top: top / 10 + "%" } });
  });
  const chart = {
    at: longest.x.map((at) => SIZE * x(at)),
    told: (index) => [xName + " " + across(longest.x[index]), all.map((line) => [line.name, line.colour, up(line.y[nearest(line.x, longest.x[index])])])],
  };
  return figure(title, chart, {
    caption, legend: all.map((line) => [line.name, line.colour]), drawn: [drawn, uprights(marks, x)], beside: dots,
    note: y.logarithmic ? "logarithmic scale" : "",
    across: x.ticks.map((tick) => [x(tick), across(tick)]), up: y.ticks.map((tick) => [y(tick), up(tick)]),
  });
}

// Shares of the time: parts over one another, in columns between `x`.
function areas(title, { parts, x, values }, { caption, across, xName, marks = [] }) {
  if (x.length < 2 || !values[0].length) return nothing(title, caption);
  const scale = scaled(x[0], x.at(-1)), floor = values[0].map(() => 0);
  const drawn = parts.map((part, row) => {
    const lower = [...floor];
    values[row].forEach((value, column) => (floor[column] += value));
    const edge = (heights) => heights.flatMap((height, column) => [column, column + 1].map((at) => [SIZE * scale(x[at]), SIZE * (1 - Math.min(1, height))]));
    return s("path", { class: "area p-" + part, d: path([...edge(floor), ...edge(lower).reverse()]) + "Z" });
  });
  const chart = {
    at: values[0].map((_, column) => SIZE * scale((x[column] + x[column + 1]) / 2)),
    told: (index) => [xName + " " + across(x[index + 1]), parts.map((part, row) => [part, "p-" + part, share(values[row][index])])],
  };
  return figure(title, chart, {
    caption, legend: parts.map((part) => [part, "p-" + part]), drawn: [drawn, uprights(marks, scale)],
    across: scale.ticks.map((tick) => [scale(tick), across(tick)]), up: [0, 0.5, 1].map((at) => [at, share(at)]),
  });
}

// What ranks did: for each lane spans of [part, begin, end, step].
function lanes(title, { lanes: all }, parts, { caption }) {
  all = all.filter((lane) => lane.spans.length);
  if (!all.length) return nothing(title, caption);
  const end = Math.max(...all.flatMap((lane) => lane.spans.map((span) => span[2])));
  const scale = scaled(0, end), row = SIZE / all.length;
  const box = (begin, last, top, height) => {
    const left = SIZE * scale(begin), width = Math.max(0.3, SIZE * scale(last) - left);
    return `M${left.toFixed(2)} ${top.toFixed(1)}h${width.toFixed(2)}v${height.toFixed(1)}h-${width.toFixed(2)}z`;
  };
  const drawn = [...parts, "collectives"].map((part) => {
    const boxes = all.flatMap((lane, place) =>
      part === "collectives"
        ? (lane.collectives ?? []).map((span) => box(span[1], span[2], row * (place + 0.74), row * 0.14))
        : lane.spans.filter((span) => span[0] === part).map((span) => box(span[1], span[2], row * (place + 0.12), row * 0.56)));
    return s("path", { class: "area p-" + part, d: boxes.join("") });
  });
  const begun = all[0].spans.map((span) => span[1]).sort((one, other) => one - other);
  const firsts = new Map(all[0].spans.map((span) => [span[3], Infinity]));
  for (const span of all[0].spans) firsts.set(span[3], Math.min(firsts.get(span[3]), span[1]));
  const within = (lane, at) => lane.spans.findLast((span) => span[1] <= at && at < span[2]);
  const chart = {
    at: begun.map((at) => SIZE * scale(at)),
    told: (index) => {
      const at = begun[index] + 1e-9, span = within(all[0], at);
      return [duration(begun[index]) + (span ? ", step " + whole(span[3]) : ""), all.slice(0, 8).map((lane) => {
        const part = within(lane, at)?.[0] ?? "other";
        return [lane.name, "p-" + part, part];
      })];
    },
  };
  const used = [...parts, "collectives"].filter((part) => part === "collectives" ? all.some((lane) => lane.collectives?.length) : all.some((lane) => lane.spans.some((span) => span[0] === part)));
  return figure(title, chart, {
    caption, legend: used.map((part) => [part, "p-" + part]), height: Math.max(60, all.length * 34), rows: true,
    drawn: [drawn, [...firsts.values()].map((at) => s("line", { class: "grid", x1: SIZE * scale(at), x2: SIZE * scale(at), y1: 0, y2: SIZE }))],
    across: scale.ticks.map((tick) => [scale(tick), duration(tick)]), up: all.map((lane, place) => [1 - (place + 0.4) / all.length, lane.name]),
  });
}

// A bar of parts for each row: [{name, values}].
function bars(title, parts, rows, { caption, words, colour = (part) => "p-" + part.replace(" ", "-") }) {
  const sum = (row) => row.values.reduce((total, value) => total + value, 0), longest = Math.max(0, ...rows.map(sum));
  if (!longest) return nothing(title, caption);
  const told = (row) => parts.map((part, place) => row.values[place] > 0 && part + " " + words(row.values[place])).filter(Boolean);
  const used = parts.filter((_, place) => rows.some((row) => row.values[place] > 0));
  return h("figure", {},
    h("figcaption", {}, caption), legend(used.map((part) => [part, colour(part)])),
    h("div", { class: "bars", role: "list", "aria-label": title }, rows.map((row) =>
      h("div", { class: "row", role: "listitem", title: told(row).join("\n") },
        h("span", { class: "name" }, row.name),
        h("div", { class: "bar", role: "img", "aria-label": told(row).join(", ") }, parts.map((part, place) =>
          row.values[place] > 0 && h("span", { class: colour(part), style: { width: (100 * row.values[place]) / longest + "%" } }))),
        h("span", { class: "sum" }, words(sum(row)))))),
    numbers(title, () => [["", ...used], rows.map((row) => [row.name, ...used.map((part) => words(row.values[parts.indexOf(part)]))])]));
}

function figure(title, chart, { caption, legend: entries, drawn, beside = [], across, up, note = "", height, rows = false }) {
  const last = chart.at.length - 1, id = "about-" + title.toLowerCase().replace(/\W+/g, "-"), tall = height ? { style: { height: height + "px" } } : {};
  const words = (index) => { const [head, lines] = chart.told(index); return head + ": " + lines.map(([name, , value]) => name + " " + value).join(", "); };
  const grid = rows ? [] : up.map(([place]) => s("line", { class: "grid", x1: 0, x2: SIZE, y1: SIZE * (1 - place), y2: SIZE * (1 - place) }));
  const edge = (place) => (place < 0.04 ? "first" : place > 0.96 ? "last" : "");
  return h("figure", {},
    h("figcaption", { id }, caption, note && h("span", { class: "scale" }, " · " + note)), legend(entries),
    h("div", { class: "chart" + (rows ? " lanes" : "") },
      h("div", { class: "up", "aria-hidden": "true", ...tall }, up.map(([place, text]) => h("span", { style: { bottom: 100 * place + "%" } }, text))),
      h("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": title, "aria-describedby": id, "aria-valuemin": 0, "aria-valuemax": last,
          "aria-valuenow": last, "aria-valuetext": words(last), chart: { ...chart, words }, ...tall },
        s("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, preserveAspectRatio: "none", "aria-hidden": "true" }, grid, ...drawn), beside,
        h("div", { class: "cursor", "data-own": true, hidden: true }), h("div", { class: "tip", "data-own": true, hidden: true })),
      h("div", { class: "across", "aria-hidden": "true" }, across.map(([place, text]) => h("span", { class: edge(place), style: { left: 100 * place + "%" } }, text))),),
    numbers(title, () => {
      const most = 40, every = Math.max(1, Math.ceil(chart.at.length / most)), places = chart.at.map((_, place) => place).filter((place) => place % every === 0 || place === last);
      return [["", ...chart.told(last)[1].map(([name]) => name)], places.map((place) => { const [head, lines] = chart.told(place); return [head, ...lines.map((line) => line[2])]; })];
    }));
}

const legend = (entries) =>
  entries.length > 1 && h("ul", { class: "legend" }, entries.map(([name, colour]) => h("li", {}, h("span", { class: "key " + colour, "aria-hidden": "true" }), name)));

const uprights = (marks, scale) =>
  marks.map(({ at, kind }) => [SIZE * scale(at), kind]).filter(([at]) => at >= 0 && at <= SIZE)
    .map(([at, kind]) => s("line", { class: "mark " + kind, x1: at, x2: at, y1: 0, y2: SIZE }));

const nothing = (title, caption) => h("figure", {}, h("figcaption", {}, caption), h("p", { class: "none" }, "Nothing was recorded."));

const numbers = (title, rows) =>
  h("details", { class: "numbers", told: rows }, h("summary", { "aria-label": "Numbers of: " + title }, "Numbers"), h("div", { class: "scroll", "data-own": true }));

const table = (heads, rows, label) =>
  h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, place) => (place ? h("td", {}, cell) : h("th", { scope: "row" }, cell)))))));

function fillNumbers(details) {
  const [heads, rows] = details.told();
  details.lastChild.replaceChildren(table(heads, rows, details.firstChild.getAttribute("aria-label")));
}

// The index of the value next to `wanted`; values grow.
function nearest(values, wanted) {
  let low = 0, high = values.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (values[middle] < wanted) low = middle; else high = middle; }
  return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : high;
}

function point(plot, index) {
  const { chart } = plot, last = chart.at.length - 1;
  plot.index = index = Math.max(0, Math.min(last, index));
  plot.setAttribute("aria-valuenow", index);
  plot.setAttribute("aria-valuetext", chart.words(index));
  const [head, rows] = chart.told(index), cursor = plot.querySelector(".cursor"), tip = plot.querySelector(".tip"), at = chart.at[index] / 10;
  cursor.hidden = tip.hidden = false;
  cursor.style.left = at + "%";
  tip.replaceChildren(h("b", {}, head), ...rows.map(([name, colour, value]) => h("div", {}, h("span", { class: "key " + colour }), name, h("em", {}, value))));
  tip.style.left = at > 50 ? "auto" : `calc(${at}% + 10px)`;
  tip.style.right = at > 50 ? `calc(${100 - at}% + 10px)` : "auto";
}

function release(plot) {
  delete plot.index;
  for (const each of plot.querySelectorAll(".cursor, .tip")) each.hidden = true;
}

const plotOf = (event) => event.target.closest?.(".plot");

document.addEventListener("pointermove", (event) => {
  const plot = plotOf(event);
  for (const other of document.querySelectorAll(".plot")) if (other !== plot && other.index !== undefined && other !== document.activeElement) release(other);
  if (!plot) return;
  const box = plot.getBoundingClientRect();
  point(plot, nearest(plot.chart.at, (SIZE * (event.clientX - box.left)) / box.width));
});
document.addEventListener("pointerleave", () => document.querySelectorAll(".plot").forEach(release));
document.addEventListener("focusout", (event) => plotOf(event) && release(plotOf(event)));
document.addEventListener("focusin", (event) => {
  const plot = plotOf(event);
  if (plot?.matches(":focus-visible")) point(plot, plot.index ?? plot.chart.at.length - 1);
});
document.addEventListener("keydown", (event) => {
  const plot = plotOf(event);
  if (!plot) return;
  const last = plot.chart.at.length - 1, page = Math.max(1, Math.round(last / 10)), now = plot.index ?? last;
  const keys = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - page, PageUp: now + page, Home: 0, End: last };
  if (event.key === "Escape") release(plot);
  if (!(event.key in keys)) return;
  event.preventDefault();
  point(plot, keys[event.key]);
});
document.addEventListener("toggle", (event) => event.target.matches?.("details.numbers[open]") && fillNumbers(event.target), true);
