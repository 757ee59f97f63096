// What the browser test asks of the report. Each question is one call, because a call takes a
// tenth of a second.

// Waits until something is true; the test has a limit of its own.
async function until(isTrue) {
  while (!isTrue()) await new Promise(function (next) { setTimeout(next, 5); });
}

// Clicks a link, and waits until the page of its target is shown alone.
async function follow(link) {
  var target = document.getElementById(link.hash.slice(1));
  if (!target) throw new Error("a link to nothing: " + link.hash);
  link.click();
  await until(function () { return target.closest(".page").classList.contains("current"); });
  var shown = [...document.querySelectorAll(".page")].filter(p => p.offsetHeight > 0);
  if (shown.length !== 1) throw new Error(shown.length + " pages are shown: " + link.hash);
}

// Opens a page by the navigation; returns the height of the document and lists of objections, all
// empty if it is good.
async function visit(id) {
  await follow(document.querySelector('nav a[href="#' + id + '"]'));
  return JSON.stringify({ height: document.documentElement.scrollHeight, objections: check() });
}

// Follows every link of every page; returns how many.
async function links() {
  var count = 0;
  for (var entry of document.querySelectorAll("nav a")) {
    await follow(entry);
    for (var link of document.querySelectorAll('.page.current a[href^="#"]')) {
      await follow(link);
      await follow(entry);
      count += 1;
    }
  }
  return count;
}

// Clicks a link to data; returns name and text of the file that the page makes of it.
async function download(name) {
  var make = URL.createObjectURL, click = HTMLAnchorElement.prototype.click, blob, saved;
  URL.createObjectURL = function (data) { blob = data; return make.call(URL, data); };
  HTMLAnchorElement.prototype.click = function () { saved = this.download; };
  var event = new MouseEvent("click", { bubbles: true, cancelable: true });
  document.querySelector('a[download="' + name + '.gz"]').dispatchEvent(event);
  await until(function () { return saved; });
  URL.createObjectURL = make;
  HTMLAnchorElement.prototype.click = click;
  return JSON.stringify([saved, await blob.text()]);
}

function check() {
  var page = document.querySelector(".page.current");
  var out = { wide: [], small: [], pale: [], bare: [], heads: [] };
  var width = document.documentElement.clientWidth;
  [document.documentElement, document.body].forEach(function (e) {
    if (e.scrollWidth > width) out.wide.push(e.nodeName + " " + e.scrollWidth + " > " + width);
  });

  function isShown(e) {
    var box = e.getBoundingClientRect();
    return box.width > 0 && box.height > 0;
  }
  function name(e) {
    return e.nodeName + "." + (e.getAttribute("class") || "") + " " + e.textContent.slice(0, 40);
  }

  page.querySelectorAll(".plot svg text").forEach(function (text) {
    if (!isShown(text)) return;
    var svg = text.ownerSVGElement;
    var scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    var size = parseFloat(getComputedStyle(text).fontSize) * scale;
    if (size < 11) out.small.push(name(text) + " " + size.toFixed(1));
    var box = text.getBoundingClientRect(), around = svg.getBoundingClientRect();
    if (box.left < around.left - 1 || box.right > around.right + 1) {
      out.wide.push("cut off: " + name(text));
    }
  });

  function rgb(text) {
    var parts = text.match(/[\d.]+/g);
    return parts ? parts.map(Number) : [0, 0, 0, 0];
  }
  function light(c) {
    var l = c.slice(0, 3).map(function (v) {
      v /= 255;
      return v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4);
    });
    return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2];
  }
  function behind(e) {
    for (; e; e = e.parentElement) {
      var c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  }
  function hasText(e) {
    return Array.prototype.some.call(e.childNodes, function (n) {
      return n.nodeType === 3 && n.data.trim();
    });
  }
  document.querySelectorAll("header *, nav *, .page.current *").forEach(function (e) {
    if (!hasText(e) || !isShown(e) || e.nodeName === "SCRIPT") return;
    var style = getComputedStyle(e);
    var ink = light(rgb(e.ownerSVGElement ? style.fill : style.color));
    var paper = light(behind(e));
    var contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < 4.5) out.pale.push(name(e) + " " + contrast.toFixed(2));
  });

  page.querySelectorAll("figure.block").forEach(function (figure) {
    if (!figure.querySelector("tbody tr")) out.bare.push(name(figure));
    figure.querySelectorAll(".plot svg").forEach(function (svg) {
      if (!svg.getAttribute("aria-label")) out.bare.push("unnamed plot in " + name(figure));
    });
  });
  page.querySelectorAll("table").forEach(function (table) {
    var count = table.querySelectorAll("thead th").length;
    table.querySelectorAll("tbody tr").forEach(function (row) {
      if (row.children.length !== count) out.heads.push("cells: " + name(row));
    });
  });
  var titles = page.querySelectorAll("h1").length;
  if (titles !== 1) out.heads.push(titles + " titles");
  return out;
}
