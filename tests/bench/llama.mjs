// Decode and prefill speed of llama.cpp (through node-llama-cpp's prebuilt library), as one JSON line.
// usage: node llama.mjs MODEL.gguf THREADS
import { getLlama } from "node-llama-cpp";

const [, , path, threads] = process.argv;
const llama = await getLlama({ gpu: false, build: "never", maxThreads: Number(threads), logLevel: "error" });
const model = await llama.loadModel({ modelPath: path });
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

async function prefill(tokens) {
  const times = [];
  for (let run = 0; run < 4; run++) {
    const context = await model.createContext({ contextSize: 1024, batchSize: 512, threads: Number(threads) });
    const sequence = context.getSequence();
    const prompt = Array.from({ length: tokens }, (_, i) => (i * 7919 + run) % 40000);
    const began = performance.now();
    await sequence.evaluateWithoutGeneratingNewTokens(prompt);
    times.push(performance.now() - began);
    await context.dispose();
  }
  return tokens / (median(times.slice(1)) / 1000);
}

async function decode(steps) {
  const context = await model.createContext({ contextSize: 1024, batchSize: 512, threads: Number(threads) });
  const sequence = context.getSequence();
  const stamps = [];
  const prompt = Array.from({ length: 16 }, (_, i) => (i * 7919) % 40000);
  for await (const _ of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
    stamps.push(performance.now());
    if (stamps.length > steps) break;
  }
  await context.dispose();
  return 1000 / median(stamps.slice(5).map((at, i) => at - stamps[i + 4]));
}

console.log(JSON.stringify({ peer: "llama.cpp", decode_tokens_per_s: await decode(128), prefill_512_tokens_per_s: await prefill(512) }));
process.exit(0);
