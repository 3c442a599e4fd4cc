// Compiles WGSL with Tint, the compiler of Dawn and Chrome.
// Standard input: a JSON object, name -> text of a module. Standard output: name -> messages, of those that are refused.

import { readFileSync, writeFileSync } from "node:fs";
import { create } from "webgpu";

const gpu = create(["backend=null"]); // kept: Dawn ends the process once it is collected
const adapter = await gpu.requestAdapter();
const device = await adapter.requestDevice({ requiredFeatures: ["subgroups", "shader-f16"] });
const refused = {};
for (const [name, text] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  device.pushErrorScope("validation");
  // Tint wants extensions named; wgpu's compiler does not know the directive. It stands on the first line, so that
  // numbers of lines stay as they are.
  const code = text.includes("subgroup") ? `enable subgroups; ${text}` : text;
  const module = device.createShaderModule({ code });
  if ((text.match(/var<storage/g) ?? []).length <= device.limits.maxStorageBuffersPerShaderStage) {
    device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } });
  } // else this device has no pipeline for it; kernels bind as many buffers only on devices that allow them
  const error = await device.popErrorScope();
  if (error) {
    const { messages } = await module.getCompilationInfo();
    const texts = messages.map(({ lineNum, message }) => `line ${lineNum} (${text.split("\n")[lineNum - 1]}): ${message}`);
    refused[name] = texts.length ? texts : [error.message];
  }
}
writeFileSync(1, JSON.stringify(refused));
process.exit(0);
