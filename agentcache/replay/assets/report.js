"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byNumber = new Map(data.requests.map((request) => [String(request.number), request]));
const numbers = [...byNumber.keys()];

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function sum(flat) {
  let total = 0;
  for (let i = 1; i < flat.length; i += 2) total += flat[i];
  return total;
}

const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(1) : "0.0") + "%";

function listRequests() {
  const list = document.getElementById("requests");
  for (const request of data.requests) {
    const share = percent(sum(request.reused.agentcache), request.tokens);
    const link = element("a");
    link.href = "#" + request.number;
    link.title = request.trace + ": " + request.tokens + " tokens";
    const bar = element("i");
    bar.append(element("b"));
    bar.firstChild.style.width = share;
    link.append(element("span", "", String(request.number)), bar, element("span", "", share));
    list.append(link);
  }
}

// rects: [start, length, class, title]; one pixel at least, so that nothing is too short to be seen
function strip(name, tokens, rects) {
  const width = 900, height = 20, space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const add = (start, length, css, title) => {
    const rect = document.createElementNS(space, "rect");
    const values = { x: (start / tokens) * width, y: 0, height, width: Math.max(1, (length / tokens) * width) };
    for (const key in values) rect.setAttribute(key, values[key]);
    rect.setAttribute("class", css);
    const hint = document.createElementNS(space, "title");
    hint.textContent = title;
    rect.append(hint);
    svg.append(rect);
  };
  add(0, tokens, "whole", "computed");
  for (const rect of rects) add(...rect);
  const row = element("div", "strip");
  row.append(element("span", "", name), svg);
  return row;
}

function pairs(flat, css, what) {
  const rects = [];
  for (let i = 0; i < flat.length; i += 2) {
    rects.push([flat[i], flat[i + 1], css, `${what}: tokens ${flat[i]} to ${flat[i] + flat[i + 1]}`]);
  }
  return rects;
}

function kindRects(request) {
  const rects = [];
  for (let i = 0, start = 0; i < request.kinds.length; i += 2) {
    const [length, kind] = [request.kinds[i], request.kinds[i + 1]];
    rects.push([start, length, "fill k" + kind, `${data.kinds[kind]}: ${length} tokens`]);
    start += length;
  }
  return rects;
}

const originCss = { "prefix hit": "o-prefix", index: "o-index", learned: "o-learned", answer: "o-answer" };

function pieceTable(request) {
  const rows = request.pieces.map(([start, length, origin, label, again, text]) =>
    [start, length, again, origin, data.labels[label], text]);
  for (const [start, length, text] of request.gaps) rows.push([start, length, "", "computed", "", text]);
  rows.sort((a, b) => a[0] - b[0]);
  const table = element("table");
  const head = element("tr");
  ["from", "tokens", "recomputed", "origin", "block", "text"].forEach((name, i) => head.append(element("th", i < 3 ? "n" : "", name)));
  table.append(head);
  for (const row of rows) {
    const line = element("tr");
    row.forEach((cell, i) => {
      const td = element("td", i < 3 ? "n" : "");
      if (i === 3) td.append(element("span", "key " + (originCss[cell] || ""), cell));
      else if (i >= 4) td.append(element("code", "", String(cell).replaceAll("\n", "⏎")));
      else td.textContent = cell;
      line.append(td);
    });
    table.append(line);
  }
  return table;
}

function keys(entries) {
  const line = element("p", "note");
  for (const [css, name] of entries) line.append(element("span", "key " + css, name), " ");
  return line;
}

function showRequest(request) {
  const at = numbers.indexOf(String(request.number));
  const nav = element("nav");
  for (const [name, target] of [["summary", ""], ["previous", numbers[at - 1]], ["next", numbers[at + 1]]]) {
    if (target === undefined) continue;
    const link = element("a", "", name);
    link.href = "#" + target;
    nav.append(link);
  }
  const ours = sum(request.reused.agentcache);
  const parts = [
    nav,
    element("h1", "", `request ${request.number} of ${request.trace}`),
    element("p", "note", `${request.tokens.toLocaleString("en")} tokens; agentcache reuses ` +
      `${percent(ours, request.tokens)}, ${percent(sum(request.recomputed), request.tokens)} recomputed; ` +
      `prefix caching ${percent(sum(request.reused.prefix), request.tokens)}`),
    strip("kinds of text", request.tokens, kindRects(request)),
    keys(data.kinds.map((name, kind) => ["k" + kind, name])),
    strip("agentcache: where reused tokens come from", request.tokens, [
      ...request.pieces.map(([start, length, origin, label]) =>
        [start, length, "fill " + originCss[origin], `${data.labels[label]}: ${length} tokens`]),
      ...pairs(request.recomputed, "fill recomputed", "recomputed"),
    ]),
    keys([...Object.entries(originCss).map(([name, css]) => [css, name]), ["recomputed", "recomputed"]]),
  ];
  for (const name of data.policies) {
    if (name !== "agentcache") {
      parts.push(strip(name, request.tokens, pairs(request.reused[name], "fill p-" + name, "reused")));
    }
  }
  parts.push(element("h2", "", "Spans"), pieceTable(request));
  document.getElementById("request").replaceChildren(...parts);
}

function route() {
  const request = byNumber.get(location.hash.slice(1));
  document.getElementById("summary").hidden = Boolean(request);
  document.getElementById("request").hidden = !request;
  if (request) {
    showRequest(request);
    scrollTo(0, 0);
  }
}

listRequests();
addEventListener("hashchange", route);
route();
