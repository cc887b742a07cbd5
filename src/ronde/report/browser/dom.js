// Elements, updates in place, and words for numbers.

const h = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (name === "style") Object.assign(element.style, value);
    else if (typeof value === "function" || typeof value === "object") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child || child === 0));
  return element;
}

// Makes `old` like `fresh`, and keeps what the reader has focused, opened, checked or scrolled.
function morph(old, fresh) {
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if ("own" in old.dataset) return;
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes])
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  old.chart = fresh.chart;
  old.told = fresh.told;
  const children = [...fresh.childNodes];
  const wanted = new Set(children.map((child) => child.id).filter(Boolean));
  const there = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  children.forEach((child, place) => {
    const now = old.childNodes[place], kept = child.id && there.get(child.id);
    if (kept) {
      if (kept !== now) old.insertBefore(kept, now ?? null);
      morph(kept, child);
    } else if (!now || (now.id && wanted.has(now.id))) old.insertBefore(child, now ?? null);
    else morph(now, child);
  });
  while (old.childNodes.length > children.length) old.lastChild.remove();
}

// Three digits, with commas between thousands.
function number(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e7 || (size > 0 && size < 1e-4)) return value.toExponential(2);
  return size >= 100 ? whole(value) : String(+value.toPrecision(3));
}

const whole = (value) => Math.round(value).toLocaleString("en-US");
const share = (value) => (value > 0 && value < 0.0095 ? (100 * value).toFixed(1) : Math.round(100 * value)) + "%";

function bytes(value) {
  if (value === null) return "–";
  let unit = 0;
  for (; Math.abs(value) >= 1000 && unit < 4; unit++) value /= 1024;
  return (unit ? value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2) : value) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
}

function duration(seconds) {
  if (seconds < 1) return +(1000 * seconds).toPrecision(3) + " ms";
  if (seconds < 100) return +seconds.toPrecision(3) + " s";
  let minutes = Math.floor(Math.round(seconds) / 60), hours = Math.floor(minutes / 60);
  const days = Math.floor(hours / 24);
  if (days) return days + " d " + (hours % 24) + " h";
  return hours ? hours + " h " + (minutes % 60) + " min" : minutes + " min " + (Math.round(seconds) % 60) + " s";
}

// A place on an axis of time.
function clock(seconds) {
  if (seconds < 60) return +seconds.toPrecision(3) + " s";
  const all = Math.round(seconds), two = (part) => String(part).padStart(2, "0");
  const hours = Math.floor(all / 3600), minutes = Math.floor(all / 60) % 60;
  return hours ? hours + ":" + two(minutes) + ":" + two(all % 60) : minutes + ":" + two(all % 60);
}

const date = (seconds) => new Date(1000 * seconds).toLocaleString("sv");
