"use strict";
(function () {
  var root = document.documentElement;
  root.classList.add("js");

  function isDark() {
    var theme = root.getAttribute("data-theme");
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  try {
    var kept = localStorage.getItem("uext4-theme");
    if (kept === "dark" || kept === "light") root.setAttribute("data-theme", kept);
  } catch (e) { /* a page from disk may have no storage */ }

  // A graph's script keeps its state in the address, which a frame without one cannot; and it
  // draws itself with a negative width when its frame is hidden.
  var before = "\x3cscript>history.replaceState = function () {};" +
    "function isShown() {" +
    "  var s = document.querySelector('svg'); return s && s.width.baseVal.value > 20; }" +
    "addEventListener('resize', function (e) {" +
    "  if (!isShown()) e.stopImmediatePropagation(); }, true);" +
    "var later = setTimeout; setTimeout = function (f, ms) {" +
    "  return later(function () { if (isShown()) f(); }, ms); };<\/script>";
  var dark = "<style>body{background:#14181f}#background{fill:#14181f!important}" +
    "#title,#subtitle,#details,#search,#matched,#unzoom{fill:#e4e8ee!important}</style>";

  // What the page carries is packed (gzip), in base64.
  var canUnpack = typeof DecompressionStream === "function";
  function unpack(data) {
    var bytes = Uint8Array.from(atob(data), function (c) { return c.charCodeAt(0); });
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  }

  function fill(box, anew) {
    var old = box.querySelector("iframe");
    if (old && !anew) return;
    var data = document.getElementById(box.getAttribute("data-svg"));
    if (!data) return;
    if (!canUnpack) {
      box.textContent = "This browser is too old to unpack the graph; the table below has its numbers.";
      return;
    }
    var frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts");
    frame.setAttribute("title", box.getAttribute("data-title"));
    frame.style.height = (Number(box.getAttribute("data-height")) + 4) + "px";
    var head = "<!DOCTYPE html><meta charset=utf-8><style>body{margin:0;overflow:hidden}svg{display:block;width:100%}</style>" +
      (isDark() ? dark : "") + before;
    unpack(data.textContent).text().then(function (svg) { frame.srcdoc = head + svg; });
    if (old) old.remove();
    box.appendChild(frame);
  }

  // A link gives its data as it is packed, where it cannot be unpacked here.
  document.addEventListener("click", function (event) {
    var link = event.target.closest && event.target.closest("a[download]");
    if (!link || !canUnpack || !link.href.startsWith("data:")) return;
    event.preventDefault();
    unpack(link.href.slice(link.href.indexOf(",") + 1)).blob().then(function (blob) {
      var unpacked = document.createElement("a");
      unpacked.href = URL.createObjectURL(blob);
      unpacked.download = link.download.replace(/\.gz$/, "");
      unpacked.click();
      setTimeout(function () { URL.revokeObjectURL(unpacked.href); }, 60000);
    });
  });

  function show() {
    var id = location.hash.slice(1) || "overview";
    try { id = decodeURIComponent(id); } catch (e) { /* an address that somebody typed */ }
    var target = document.getElementById(id);
    var page = target && target.closest(".page") || document.getElementById("overview");
    if (target && target.id === "main") return;
    document.querySelectorAll(".page").forEach(function (other) {
      other.classList.toggle("current", other === page);
    });
    document.querySelectorAll("nav a").forEach(function (link) {
      var isHere = link.getAttribute("href") === "#" + page.id;
      if (isHere) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      if (isHere && link.parentElement.scrollWidth > link.parentElement.clientWidth) {
        link.parentElement.scrollLeft = link.offsetLeft - 40;
      }
    });
    page.querySelectorAll(".graph").forEach(function (box) { fill(box, false); });
    if (target && target !== page) target.scrollIntoView();
    else scrollTo(0, 0);
  }

  document.getElementById("theme").addEventListener("click", function () {
    var theme = isDark() ? "light" : "dark";
    root.setAttribute("data-theme", theme);
    try { localStorage.setItem("uext4-theme", theme); } catch (e) { /* as above */ }
    document.querySelectorAll(".page.current .graph").forEach(function (box) { fill(box, true); });
  });
  // Paper cannot be opened.
  addEventListener("beforeprint", function () {
    document.querySelectorAll("figure details").forEach(function (part) { part.open = true; });
  });
  addEventListener("hashchange", show);
  show();
})();
