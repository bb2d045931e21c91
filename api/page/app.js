// The page: collects media and a prompt, uploads them, shows the answer as it is written and the timeline of its stages.
"use strict";

const $ = (id) => document.getElementById(id);
const state = { media: [], pipelines: [], abort: null, recorder: null };

// ---- what the server has ------------------------------------------------------------------------------------------

async function connect() {
  try {
    const ready = await fetch("/readyz");
    if (!ready.ok) throw new Error((await ready.json()).error?.message ?? "not ready");
    const { models, device } = await ready.json();
    setStatus(`${models.join(", ")} on ${device}`, "ready");
    const { pipelines } = await (await fetch("/v1/pipelines")).json();
    const known = (await (await fetch("/v1/models")).json()).data;
    const named = new Set(pipelines.map((p) => p.name));
    const others = known.filter((m) => !named.has(m.id));
    state.pipelines = [
      ...pipelines.filter((p) => !p.unavailable),
      ...others.map((m) => ({ name: m.id, description: describeModel(m), placeholder: m.placeholder })),
    ];
    fillPipelines();
  } catch (error) {
    setStatus(error.message, "bad");
    setTimeout(connect, 1500);
  }
}

function describeModel(model) {
  const senses = [model.image && "pictures", model.audio && "sound"].filter(Boolean).join(" and ");
  return `The model alone${senses ? `; takes ${senses}` : "; text only"}.`;
}

function setStatus(text, kind) {
  $("status").textContent = text;
  $("status").className = `status ${kind}`;
}

function fillPipelines() {
  const chosen = $("pipeline").value;
  $("pipeline").replaceChildren(...state.pipelines.map((p) => new Option(p.name, p.name)));
  if (chosen) $("pipeline").value = chosen;
  showAbout();
}

function current() {
  return state.pipelines.find((p) => p.name === $("pipeline").value);
}

function showAbout() {
  $("about").textContent = current()?.description ?? "";
  $("notice").hidden = !current()?.placeholder;
}

// ---- media --------------------------------------------------------------------------------------------------------

function add(file) {
  const kind = file.type.startsWith("image/") ? "image" : "audio";
  state.media.push({ file, kind, url: URL.createObjectURL(file) });
  drawMedia();
}

function drawMedia() {
  $("media").replaceChildren(...state.media.map((medium) => {
    const item = document.createElement("li");
    const view = document.createElement(medium.kind === "image" ? "img" : "audio");
    view.src = medium.url;
    if (medium.kind === "image") view.alt = medium.file.name;
    else view.controls = true;
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = `${medium.file.name} (${Math.ceil(medium.file.size / 1024)} KB)`;
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", `Remove ${medium.file.name}`);
    remove.onclick = () => {
      URL.revokeObjectURL(medium.url);
      state.media = state.media.filter((other) => other !== medium);
      drawMedia();
    };
    item.append(view, name, remove);
    return item;
  }));
}

async function addSample(path, name, type) {
  const blob = await (await fetch(path)).blob();
  add(new File([blob], name, { type }));
}

async function record() {
  if (state.recorder) return state.recorder.stop();
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const recorder = new MediaRecorder(stream);
    const pieces = [];
    recorder.ondataavailable = (event) => pieces.push(event.data);
    recorder.onstop = () => {
      stream.getTracks().forEach((track) => track.stop());
      state.recorder = null;
      $("record").textContent = "Record";
      $("record").setAttribute("aria-pressed", "false");
      add(new File(pieces, "recording.webm", { type: "audio/webm" }));
    };
    recorder.start();
    state.recorder = recorder;
    $("record").textContent = "Stop recording";
    $("record").setAttribute("aria-pressed", "true");
  } catch (error) {
    showError(`No microphone: ${error.message}`);
  }
}

// ---- asking -------------------------------------------------------------------------------------------------------

function options() {
  const number = (id) => Number($(id).value);
  return { max_tokens: number("max_tokens"), temperature: number("temperature"), top_p: number("top_p"), seed: number("seed") };
}

function clearResult() {
  $("empty").hidden = true;
  $("error").hidden = true;
  $("answer").textContent = "";
  $("figures").textContent = "";
  for (const id of ["segments", "warnings", "spans"]) $(id).replaceChildren();
  $("timeline").hidden = true;
}

function showError(message) {
  $("empty").hidden = true;
  $("error").textContent = message;
  $("error").hidden = false;
}

async function ask(event) {
  event.preventDefault();
  if (state.abort) return;
  clearResult();
  const form = new FormData();
  for (const { file, kind } of state.media) form.append(kind, file);
  if ($("prompt").value.trim()) form.append("prompt", $("prompt").value);
  form.append("options", JSON.stringify(options()));
  state.abort = new AbortController();
  running(true);
  const began = performance.now();
  let first = null;
  let terminal = false;
  try {
    const response = await fetch(`/v1/pipelines/${encodeURIComponent($("pipeline").value)}/run`, {
      method: "POST", body: form, headers: { accept: "text/event-stream" }, signal: state.abort.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const [name, data] of events(response.body)) {
      if (name === "text") {
        first ??= performance.now() - began;
        $("answer").append(data.delta);
      } else if (name === "segment") showSegment(data);
      else if (name === "error") { terminal = true; showError(data.error.message); }
      else if (name === "done") { terminal = true; showDone(data, first); }
    }
    if (!terminal) showError("The stream ended before the answer was complete.");
  } catch (error) {
    if (error.name !== "AbortError") showError(error.message);
  } finally {
    state.abort = null;
    running(false);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    for (let end = waiting.indexOf("\n\n"); end >= 0; end = waiting.indexOf("\n\n")) {
      const lines = waiting.slice(0, end).split("\n");
      waiting = waiting.slice(end + 2);
      const field = (name) => lines.filter((l) => l.startsWith(name + ":")).map((l) => l.slice(name.length + 1).trim()).join("");
      if (field("data")) yield [field("event"), JSON.parse(field("data"))];
    }
  }
}

function running(is) {
  $("answer").classList.toggle("running", is);
  $("send").disabled = is;
  $("stop").hidden = !is;
}

function showSegment(segment) {
  const item = document.createElement("li");
  const time = document.createElement("time");
  time.textContent = `${segment.start.toFixed(2)} to ${segment.end.toFixed(2)} s`;
  item.append(time, segment.text.trim());
  $("segments").append(item);
}

function showDone(done, first) {
  if (!$("answer").textContent) $("answer").textContent = done.text;
  if (!done.text) showError("The model ended its answer at once: no text.");
  const { prompt_tokens, media_tokens, completion_tokens } = done.usage;
  const parts = [`${prompt_tokens} prompt tokens (${media_tokens} of media)`, `${completion_tokens} answer tokens`];
  if (first !== null) parts.push(`first text after ${first.toFixed(0)} ms`);
  if (done.finish_reason === "length") parts.push("cut at the token limit");
  $("figures").textContent = parts.join(", ");
  $("warnings").replaceChildren(...done.warnings.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  drawTimeline(done.timeline);
}

function drawTimeline(spans) {
  const end = Math.max(0.001, ...spans.map((span) => span.end_ms));
  $("spans").replaceChildren(...spans.map((span) => {
    const row = document.createElement("div");
    row.className = "span";
    row.setAttribute("role", "listitem");
    row.title = span.note;
    const label = document.createElement("span");
    label.className = "label";
    label.textContent = span.name;
    const track = document.createElement("span");
    track.className = "track";
    const bar = document.createElement("span");
    bar.className = `bar ${["encode", "prefill", "decode"].find((kind) => span.name.includes(kind)) ?? ""}`;
    bar.style.left = `${(100 * span.start_ms) / end}%`;
    bar.style.width = `${(100 * (span.end_ms - span.start_ms)) / end}%`;
    track.append(bar);
    const ms = document.createElement("span");
    ms.className = "ms";
    ms.textContent = `${(span.end_ms - span.start_ms).toFixed(1)} ms`;
    row.append(label, track, ms);
    return row;
  }));
  $("timeline").hidden = spans.length === 0;
}

function curl() {
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [`curl -N ${location.origin}/v1/pipelines/${$("pipeline").value}/run -H 'accept: text/event-stream'`];
  for (const { file, kind } of state.media) lines.push(`-F ${kind}=@${quote(file.name)}`);
  if ($("prompt").value.trim()) lines.push(`-F prompt=${quote($("prompt").value)}`);
  lines.push(`-F options=${quote(JSON.stringify(options()))}`);
  return lines.join(" \\\n  ");
}

// ---- wiring -------------------------------------------------------------------------------------------------------

$("ask").addEventListener("submit", ask);
$("stop").addEventListener("click", () => state.abort?.abort());
$("pipeline").addEventListener("change", showAbout);
$("choose").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", () => { [...$("files").files].forEach(add); $("files").value = ""; });
$("record").addEventListener("click", record);
$("sample-image").addEventListener("click", () => addSample("/page/sample.png", "sample.png", "image/png"));
$("sample-audio").addEventListener("click", () => addSample("/page/sample.wav", "sample.wav", "audio/wav"));
$("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(curl());
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy as curl"; }, 1500);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});
document.addEventListener("paste", (event) => [...event.clipboardData.files].forEach(add));
for (const name of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") [...event.dataTransfer.files].forEach(add);
  });
}
connect();
