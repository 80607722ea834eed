  var view = document.getElementById("view");
  if (!view) { return; }
  function byId(id) { return document.getElementById(id); }
  var a = byId("image-a"), b = byId("image-b"), clip = byId("clip"), line = byId("line"), where = byId("where");
  var setting = byId("setting"), example = byId("example"), left = byId("left"), right = byId("right");
  var zoom = 1, x = 0, y = 0;

  function fill(select, options, wanted) {
    select.replaceChildren();
    options.forEach(function (pair) { select.add(new Option(pair[1], pair[0])); });
    var has = options.some(function (pair) { return String(pair[0]) === String(wanted); });
    select.value = has ? wanted : options[0][0];
  }
  function split() {
    var share = Number(where.value);
    clip.style.clipPath = "inset(0 0 0 " + share + "%)";
    line.style.left = share + "%";
    where.setAttribute("aria-valuetext", Math.round(share) + " percent " + left.value + ", the rest " + right.value);
  }
  function place() {
    zoom = Math.min(32, Math.max(1, zoom));
    x = Math.min(0, Math.max(view.clientWidth * (1 - zoom), x));
    y = Math.min(0, Math.max(view.clientHeight * (1 - zoom), y));
    [a, b].forEach(function (image) { image.style.transform = "translate(" + x + "px," + y + "px) scale(" + zoom + ")"; });
    view.classList.toggle("pixels", a.naturalWidth > 0 && zoom * view.clientWidth > 2 * a.naturalWidth);
    byId("zoom").textContent = Math.round(zoom * 100) + " %";
  }
  function zoomTo(value, atX, atY) {
    value = Math.min(32, Math.max(1, value));
    if (atX === undefined) { atX = view.clientWidth / 2; atY = view.clientHeight / 2; }
    x = atX - (atX - x) * value / zoom;
    y = atY - (atY - y) * value / zoom;
    zoom = value;
    place();
  }
  function show() {
    var entry = data.examples[Number(example.value)];
    a.src = data.images[entry.files[left.value]];
    b.src = data.images[entry.files[right.value]];
    a.alt = left.value + " of " + entry.image;
    b.alt = right.value + " of " + entry.image;
    byId("tag-a").textContent = left.value;
    byId("tag-b").textContent = right.value;
    byId("about").textContent = entry.image + ", " + entry.about.join("; ");
    split();
  }
  function chooseExample() {
    var kinds = Object.keys(data.examples[Number(example.value)].files).map(function (kind) { return [kind, kind]; });
    fill(left, kinds, left.value || data.left);
    fill(right, kinds, right.value || data.right);
    show();
  }
  function chooseSetting() {
    var options = [];
    data.examples.forEach(function (entry, index) {
      if (entry.setting === setting.value) { options.push([index, entry.ranks.join(", ") + ": " + entry.image]); }
    });
    fill(example, options);
    chooseExample();
  }

  var names = [];
  data.examples.forEach(function (entry) { if (!names.includes(entry.setting)) { names.push(entry.setting); } });
  fill(setting, names.map(function (name) { return [name, name]; }), data.first);
  setting.addEventListener("change", chooseSetting);
  example.addEventListener("change", chooseExample);
  left.addEventListener("change", show);
  right.addEventListener("change", show);
  where.addEventListener("input", split);
  a.addEventListener("load", function () {
    view.style.aspectRatio = a.naturalWidth + " / " + a.naturalHeight;
    view.style.maxWidth = where.style.maxWidth = "calc(80vh * " + a.naturalWidth / a.naturalHeight + ")";
    place();
  });
  window.addEventListener("resize", place);
  byId("in").addEventListener("click", function () { zoomTo(zoom * 2); });
  byId("out").addEventListener("click", function () { zoomTo(zoom / 2); });
  byId("whole").addEventListener("click", function () { zoomTo(1); });
  view.addEventListener("wheel", function (event) {
    if (!event.ctrlKey) { return; }
    event.preventDefault();
    var box = view.getBoundingClientRect();
    zoomTo(zoom * (event.deltaY < 0 ? 1.25 : 0.8), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  view.addEventListener("dblclick", function (event) {
    var box = view.getBoundingClientRect();
    zoomTo(zoom > 1 ? 1 : 4, event.clientX - box.left, event.clientY - box.top);
  });
  view.addEventListener("pointerdown", function (event) {
    var divider = event.target.id === "grip", startX = event.clientX - x, startY = event.clientY - y;
    view.setPointerCapture(event.pointerId);
    function move(moved) {
      if (divider) {
        var box = view.getBoundingClientRect();
        where.value = 100 * (moved.clientX - box.left) / box.width;
        split();
      } else {
        x = moved.clientX - startX;
        y = moved.clientY - startY;
        place();
      }
    }
    function end() {
      view.removeEventListener("pointermove", move);
      view.removeEventListener("pointerup", end);
      view.removeEventListener("pointercancel", end);
    }
    view.addEventListener("pointermove", move);
    view.addEventListener("pointerup", end);
    view.addEventListener("pointercancel", end);
  });
  view.addEventListener("keydown", function (event) {
    var steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (steps) { x += steps[0]; y += steps[1]; place(); }
    else if (event.key === "+" || event.key === "=") { zoomTo(zoom * 2); }
    else if (event.key === "-") { zoomTo(zoom / 2); }
    else { return; }
    event.preventDefault();
  });
  chooseSetting();
