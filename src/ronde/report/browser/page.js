// The page: a function from its state to elements. A frozen page holds its state, a live one is sent it.

const LIVES = { runs: "running", ended: "ended", failed: "failed", gone: "gone without a word" };
const COLOURS = 8;
const asked = new URLSearchParams(location.search);

const section = (title, ...content) => {
  const id = title.toLowerCase().replace(/\W+/g, "-");
  return h("section", { id, "aria-labelledby": id + "-title" }, h("h2", { id: id + "-title" }, title), content);
};
const pair = (...sections) => h("div", { class: "pair" }, sections);
const scroll = (label, content) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, content);
const few = (shown, of) => (shown < of ? `; ${shown} of ${of} ranks, those that stand out` : "");
const pill = (life) => h("span", { class: "state " + life }, LIVES[life]);
const marks = (run) => run.events.filter(({ kind }) => ["death", "restart", "checkpoint", "notice"].includes(kind));
const byTime = (run, more) => ({ across: clock, xName: "time", marks: run ? marks(run) : [], live: run?.life === "runs", ...more });

function address(names) {
  const query = new URLSearchParams(names.map((name) => ["run", name]));
  if (asked.has("token")) query.set("token", asked.get("token"));
  return String(query) ? "?" + query : location.pathname;
}

const head = (title, facts, life) =>
  h("header", {}, h("h1", {}, title, life && pill(life)), facts.map((fact) => h("p", { class: "facts" }, fact)));

function oneRun(run) {
  return [
    head(run.title, [[...run.facts, "begun " + date(run.begun)].join(" · "), run.path], run.life),
    run.cause && section("Cause", h("p", { class: "cause" }, run.cause.summary),
      run.cause.evidence.length > 0 && h("ul", {}, run.cause.evidence.map((line) => h("li", {}, line))),
      run.cause.fix && h("p", { class: "fix" }, "Fix: " + run.cause.fix)),
    run.tiles.length > 0 && h("dl", { class: "tiles" }, run.tiles.map(([name, value, note]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, h("small", {}, note))))),
    run.tiles.length === 0 && h("p", { class: "none" }, "No rank has recorded a step."),
    run.tiles.length > 0 && [
      section("Loss", lines("Loss", [{ name: "loss", colour: "c0", ...run.loss }], lossWords(run.life === "runs"))),
      pair(
        section("Throughput", lines("Throughput", [{ name: run.throughput.unit, colour: "c2", ...run.throughput }],
          byTime(run, { caption: throughputCaption(run.throughput.unit), up: number }))),
        section("Memory", lines("Memory", run.memory.lines.map((line, place) => ({ colour: "c" + (place % COLOURS), x: run.memory.x, ...line })),
          byTime(run, { caption: memoryWords(run.memory.device) + ", by time.", up: bytes, binary: true })))),
      section("Where the time goes, rank by rank", bars("Time of a step by rank", run.phases.parts, run.phases.rows,
        { caption: "The mean step of each rank, without the first one" + few(run.phases.rows.length, run.phases.of) + ".", words: duration })),
      section("Where the time goes, over the run", areas("Shares of the time", run.shares,
        byTime(run, { caption: "Shares of the time, the mean of all ranks. What lies between steps counts too: evaluation, saving." }))),
      pair(section("Who keeps others waiting", stragglers(run.stragglers)), section("Communication", routes(run.routes))),
      section("Timeline", lanes("Timeline", run.timeline, run.phases.parts, { caption: timelineWords(run.timeline) })),
      section("Checkpoints", checkpoints(run.checkpoints)),
    ],
    section("Events", events(run)),
    run.ranks.length > 0 && section("Ranks and hosts", ranks(run)),
    footer(run.folded),
  ];
}

const lossWords = (live) => ({
  caption: "What the script read as its loss (item(), float(), a format), by optimizer step.",
  across: whole, up: number, xName: "step", zero: false, live,
});
const throughputCaption = (unit) => unit === "samples/s" ? "Samples/s by time, of all ranks together." : "Steps/s by time: of this run no samples are known.";
const memoryWords = (device) => (device ? "Memory that torch holds on each rank's device" : "Resident memory of each process");
const timelineWords = (timeline) => (timeline.traced
  ? "Some of the steps of --trace: phases, waits over them, and collectives below"
  : "The last recorded steps. Within a step the parts are in a fixed order: run with --trace for the true one")
  + few(timeline.lanes.length, timeline.of) + ".";

function stragglers({ verdict, rows, of }) {
  const most = Math.max(1e-12, ...rows.map((row) => row.late));
  return [
    h("p", { class: "note" }, verdict + (rows.length ? " Times are those of a step" + few(rows.length, of) + "." : "")),
    rows.length > 0 && scroll("Who keeps others waiting", table(["rank", "came last", "others waited", "waited itself"],
      rows.map((row) => [row.name, [meter(row.last, "c1"), share(row.last)], [meter(row.late / most, "c3"), duration(row.late)], duration(row.waited)]), "Who keeps others waiting")),
  ];
}

const meter = (value, colour) =>
  h("span", { class: "meter", "aria-hidden": "true" }, h("span", { class: colour, style: { width: 100 * Math.min(1, value) + "%" } }));

const routes = ({ parts, rows, told, of }) =>
  rows.length === 0 ? h("p", { class: "none" }, "Nothing was sent.")
    : bars("Bytes by route", parts, rows, { caption: "Bytes that each rank handed over, by route" + few(rows.length, of) + ". " + told, words: bytes });

const checkpoints = (all) =>
  all.length === 0 ? h("p", { class: "none" }, "None. ronde run --checkpoint DIR makes them.")
    : scroll("Checkpoints", table(["step", "at", "paused", "state", "there"],
      [...all].reverse().map((each) => [whole(each.step), clock(Math.max(0, each.at)), duration(each.paused), bytes(each.bytes), each.kept ? "yes" : "replaced"]), "Checkpoints"));

const events = (run) =>
  run.events.length + run.notes.length === 0 ? h("p", { class: "none" }, "None.")
    : h("ol", { class: "events" },
      run.events.map((event) => h("li", {}, h("time", { title: date(event.time) }, event.at < -1 ? date(event.time).slice(11) : clock(Math.max(0, +event.at.toFixed(1)))),
        h("span", { class: "kind " + event.kind.replace(/\W+/g, "-") }, event.kind), h("p", {}, event.text))),
      run.notes.map((note) => h("li", {}, h("time"), h("span", { class: "kind" }, "note"), h("p", {}, note))));

function ranks(run) {
  const device = run.ranks.some((rank) => rank.device), now = run.ranks.some((rank) => rank.now);
  const heads = ["rank", "host", "state", now && "now", "steps", "samples", ...run.phases.parts, "memory", "peak", device && "device"];
  const rows = run.ranks.map((rank) => ["rank " + rank.rank, rank.host, LIVES[rank.life], now && rank.now, whole(rank.steps), whole(rank.samples),
    ...rank.spent.map(duration), bytes(rank.memory), bytes(rank.peak), device && bytes(rank.device)]);
  const kept = (cells) => cells.filter((cell) => cell !== false);
  return [h("p", { class: "note" }, "Time of the whole run in each part, and resident memory now and at most."), scroll("Ranks and hosts", table(kept(heads), rows.map(kept), "Ranks and hosts"))];
}

const footer = (folded) => h("footer", {},
  "ronde " + (state.ronde ?? "") + ". Times are of the host's side: a CUDA device works on while the host goes ahead. Waiting is taken out of the phase in which it happens."
  + (folded > 1 ? ` A point of this run stands for up to ${whole(folded)} steps.` : ""));

function compared(all) {
  const colour = (place) => "c" + (place % COLOURS);
  const named = all.map((run, place) => ({ ...run, label: all.filter((other) => other.title === run.title).length > 1 ? run.id : run.title, colour: colour(place) }));
  const over = (key, more = (run) => run[key]) => named.map((run) => ({ name: run.label, colour: run.colour, ...more(run) }));
  const units = new Set(all.filter((run) => run.throughput.x.length).map((run) => run.throughput.unit));
  const facts = [["state", (run) => LIVES[run.life]], ["begun", (run) => date(run.begun)], ["plan and place", (run) => run.facts.join(" · ")],
    ...(all.find((run) => run.tiles.length) ?? all[0]).tiles.map(([name], place) => [name, ({ tiles }) => tiles[place] ? [tiles[place][1], h("small", {}, tiles[place][2])] : "–"])];
  return [
    head("Runs over each other", [`${all.length} runs`]),
    section("What they are", scroll("What they are", table(["", ...named.map((run) =>
      [h("span", { class: "key " + run.colour, "aria-hidden": "true" }), stream ? h("a", { href: address([run.id]) }, run.label) : run.label])],
      facts.map(([name, told]) => [name, ...named.map(told)]), "What they are"))),
    section("Loss", lines("Loss", over("loss"), lossWords(false))),
    pair(
      section("Throughput", lines("Throughput", over("throughput"), byTime(null, { caption: [...units].join(" and ") + " by time since each run's beginning.", up: number }))),
      section("Memory", lines("Memory", over("memory", (run) => ({ x: run.memory.x, y: run.memory.most })),
        byTime(null, { caption: "Memory of the rank with the most, by time since each run's beginning.", up: bytes, binary: true })))),
    footer(Math.max(...all.map((run) => run.folded))),
  ];
}

function list({ runs, root }) {
  const row = (run) => h("tr", { id: "run-" + run.id },
    h("td", {}, h("input", { type: "checkbox", name: "run", value: run.id, "aria-label": "Choose " + run.title + ", " + run.id })),
    h("th", { scope: "row" }, h("a", { href: address([run.id]) }, run.title), h("small", {}, run.id)),
    h("td", {}, pill(run.life)), h("td", { class: "wide" }, run.plan), h("td", {}, run.ranks), h("td", {}, whole(run.steps)),
    h("td", {}, number(run.loss)), h("td", { class: "wide" }, duration(run.seconds)), h("td", { class: "wide" }, date(run.begun)));
  return [
    head("Runs", [root]),
    runs.length === 0 ? h("p", { class: "none" }, "There is no run yet. The page shows each one as it begins.")
      : h("form", { method: "get", id: "runs" }, asked.has("token") && h("input", { type: "hidden", name: "token", value: asked.get("token") }),
        h("section", { "aria-label": "Runs" }, h("p", { class: "note" }, "Choose two or more to lay them over each other. ", h("button", { "data-own": true, disabled: true }, "Compare")),
          scroll("Runs", h("table", { "aria-label": "Runs" },
            h("thead", {}, h("tr", {}, h("td"), [["script"], ["state"], ["plan", "wide"], ["ranks"], ["steps"], ["loss"], ["time", "wide"], ["begun", "wide"]].map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))),
            h("tbody", {}, runs.map(row)))))),
  ];
}

function view() {
  if (state === null) return [h("p", { class: "none" }, "The page waits for the server.")];
  if (state.kind === "list") return list(state);
  const missing = (state.missing ?? []).map((name) => h("p", { class: "none" }, `Nothing is known of ${name} yet. The page shows it as soon as it begins.`));
  return [missing, state.runs.length === 1 ? oneRun(state.runs[0]) : state.runs.length ? compared(state.runs) : []];
}

let state = JSON.parse(document.getElementById("state").textContent), stream = null, link = "connecting";

function render() {
  const fresh = h("main", {},
    h("div", { class: "bar-top" }, h("span", { class: "brand" }, "ronde"), state?.home && h("nav", { "aria-label": "Pages" }, h("a", { href: address([]) }, "All runs")),
      document.body.dataset.live !== undefined && h("span", { class: "link " + link, role: "status" }, link)), view());
  morph(document.querySelector("main"), fresh);
  document.title = (state?.kind === "runs" && state.runs.length === 1 ? state.runs[0].title + " · " + LIVES[state.runs[0].life] : "Runs") + " · ronde";
  for (const plot of document.querySelectorAll(".plot")) if (plot.index !== undefined) point(plot, plot.index);
  document.querySelectorAll("details.numbers[open]").forEach(fillNumbers);
  document.documentElement.dataset.drawn = performance.now().toFixed(0);
}

function told(word) {
  link = word;
  render();
}

// A hidden page holds no connection: browsers allow six for each server.
function follow() {
  stream?.close();
  if (document.hidden) return;
  stream = new EventSource("events" + location.search);
  stream.addEventListener("page", (event) => { state = JSON.parse(event.data); told("live"); });
  stream.onerror = () => {
    told("reconnecting");
    if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  };
}

document.addEventListener("change", (event) => {
  const button = document.querySelector("#runs button");
  if (button && event.target.name === "run") button.disabled = document.querySelectorAll("#runs [name=run]:checked").length < 2;
});
render();
if (document.body.dataset.live !== undefined) {
  document.addEventListener("visibilitychange", follow);
  follow();
}
