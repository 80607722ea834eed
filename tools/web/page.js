// Pasted photographs are uploaded.
addEventListener("paste", (event) => {
  const files = event.clipboardData.files;
  const input = document.querySelector("#photo input[type=file]");
  if (!files.length || !input) return;
  input.files = files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
});

// Errors lie over the result: those of before are closed when the visitor does something else.
const closeErrors = () => document.querySelectorAll("[data-testid=toast-close]").forEach((close) => close.click());
addEventListener("change", (event) => event.target.closest("#photo") && closeErrors(), true);
addEventListener("click", (event) => {
  if (event.target.closest("#cancel, #run, #save, #examples")) closeErrors();
  // On a phone the result lies below the controls.
  if (event.target.closest("#run") && innerWidth < 700) document.querySelector("#status").scrollIntoView({ behavior: "smooth" });
}, true);

// The arrow keys move the line between the images, which gradio's slider leaves to the mouse.
addEventListener("keydown", (event) => {
  const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const slider = document.querySelector("#slider [data-testid=slider]");
  if (!direction || !slider || event.target.closest("input, textarea, canvas, [role=slider], [role=listbox]")) return;
  const line = slider.querySelector(".inner").getBoundingClientRect();
  const width = slider.parentElement.getBoundingClientRect().width;
  const at = { view: window, bubbles: true, clientX: line.x + line.width / 2 + direction * width / 20, clientY: line.y + 1 };
  slider.dispatchEvent(new MouseEvent("mousedown", at));
  dispatchEvent(new MouseEvent("mouseup", at));
  event.preventDefault();
});
