function render({ model, el }) {
  const line = document.createElement("p");
  const isUrgent = model.get("is_urgent");
  line.setAttribute("role", isUrgent ? "alert" : "status");
  line.setAttribute("aria-live", isUrgent ? "assertive" : "polite");
  line.style.cssText = "max-width:62em;margin:.2em 0;line-height:1.5;white-space:pre-line;" +
    (isUrgent ? "background:#b00020;color:#ffffff;font-weight:600;padding:4px 12px" : "");
  const fold = document.createElement("details");
  const title = document.createElement("summary");
  title.textContent = "Numbers of this figure";
  title.style.cursor = "pointer";
  const numbers = document.createElement("div");
  numbers.className = "jp-RenderedHTMLCommon";
  fold.append(title, numbers);
  el.append(line, fold);
  const write = () => {
    line.textContent = model.get("text");
    line.style.display = model.get("text") ? "block" : "none";
    numbers.innerHTML = model.get("table_html");
    fold.style.display = model.get("table_html") ? "block" : "none";
  };
  model.on("change:text", write);
  model.on("change:table_html", write);
  write();
}
export default { initialize: ({ model }) => listen(model), render };
